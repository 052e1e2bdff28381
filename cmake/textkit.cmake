# The Rust text library (tokenizers, chat templates) behind its C ABI. Owned by rust/textkit.
add_library(warprow_textkit INTERFACE)
