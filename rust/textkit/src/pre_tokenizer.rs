// SPDX-License-Identifier: Apache-2.0
//! The pre-tokenizers that `tokenizer.ggml.pre` names. Each is a chain of regular expressions. Each expression splits
//! every piece of the previous one into its matches and the text between them. The expressions are those of the models'
//! own tokenizer.json files, so that Oniguruma interprets them in the same way.

use tokenizers::utils::SysRegex;

#[derive(Default)]
struct Spec {
    patterns: &'static [&'static str],
    /// A whole word that is a token is not merged from its characters.
    ignore_merges: bool,
    /// The text is normalised to Unicode NFC first.
    nfc: bool,
    /// Whether a text begins with BOS if the metadata has no such setting.
    add_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const CJK_KANA: &str = r"[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+";
const CJK_HANGUL: &str = r"[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+";
// Latin, Greek, Cyrillic and the other scripts with case.
const CASED_LETTERS: &str = concat!(
    r"\s?[A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF",
    r"\u0370-\u0373\u0376\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5",
    r"\u03F7-\u0481\u048A-\u052F\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA",
    r"\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45",
    r"\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE",
    r"\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC\u1FF2-\u1FF4\u1FF6-\u1FFC\u2102",
    r"\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139",
    r"\u213C-\u213F\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4\u2CEB-\u2CEE\u2CF2\u2CF3",
    r"\uA640-\uA66D\uA680-\uA69B\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-\uFB06",
    r"\uFB13-\uFB17\uFF21-\uFF3A\uFF41-\uFF5A\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}",
    r"\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+",
);

fn spec(pre: &str) -> Option<Spec> {
    let plain = |patterns| Spec {
        patterns,
        ..Spec::default()
    };
    Some(match pre {
        "gpt-2" | "phi-2" | "gigachat" | "exaone4" => plain(&[GPT2]),
        "olmo" | "mpt" => Spec {
            patterns: &[GPT2],
            nfc: true,
            ..Spec::default()
        },
        // The first expression splits off each digit.
        "smollm" | "starcoder" | "refact" | "codeshell" | "exaone" | "minerva-7b" => {
            plain(&[r"\p{N}", GPT2])
        }
        "command-r" => Spec {
            patterns: &[r"\p{N}", GPT2],
            nfc: true,
            ..Spec::default()
        },
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "pixtral" | "lfm2" => Spec {
            patterns: &[LLAMA3],
            ignore_merges: true,
            nfc: false,
            add_bos: true,
        },
        "dbrx" | "smaug-bpe" | "chatglm-bpe" => plain(&[LLAMA3]),
        "glm4" | "glm5" => Spec {
            patterns: &[LLAMA3],
            ignore_merges: true,
            ..Spec::default()
        },
        "qwen2" | "deepseek-r1-qwen" | "megrez" => Spec {
            patterns: &[QWEN2],
            nfc: true,
            ..Spec::default()
        },
        "stablelm2" | "hunyuan" => plain(&[QWEN2]),
        "qwen35" => plain(&[QWEN35]),
        "tekken" => Spec {
            patterns: &[TEKKEN],
            ignore_merges: true,
            nfc: false,
            add_bos: true,
        },
        "gpt-4o" | "llama4" => plain(&[GPT4O]),
        "deepseek-llm" => plain(&[
            r"[\r\n]",
            CASED_LETTERS,
            r"\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+",
            r"\s+$",
            CJK_HANGUL,
            r"\p{N}+",
        ]),
        "deepseek-coder" => plain(&[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK_HANGUL, r"\p{N}"]),
        "deepseek-v3" => plain(&[r"\p{N}{1,3}", CJK_KANA, DEEPSEEK3]),
        "falcon" => plain(&[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
        // For files converted before the key existed.
        "" | "default" => plain(&[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
        _ => return None,
    })
}

pub struct PreTokenizer {
    chain: Vec<SysRegex>,
    pub ignore_merges: bool,
    pub nfc: bool,
    pub add_bos: bool,
}

impl PreTokenizer {
    pub fn new(pre: &str) -> Result<Self, String> {
        let spec = spec(pre).ok_or_else(|| {
            format!("pre-tokenizer \"{pre}\" (tokenizer.ggml.pre) is not supported")
        })?;
        let chain = spec
            .patterns
            .iter()
            .map(|p| SysRegex::new(p).map_err(|e| format!("pre-tokenizer \"{pre}\": {e}")))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(PreTokenizer {
            chain,
            ignore_merges: spec.ignore_merges,
            nfc: spec.nfc,
            add_bos: spec.add_bos,
        })
    }

    /// The words of `text`, in order: byte ranges that cover it.
    pub fn split(&self, text: &str) -> Vec<(usize, usize)> {
        let mut spans = vec![(0, text.len())];
        for regex in &self.chain {
            let mut finer = Vec::with_capacity(spans.len() * 2);
            for (start, end) in spans {
                let mut done = start;
                for (a, b) in regex.find_iter(&text[start..end]) {
                    let (a, b) = (start + a, start + b);
                    if done < a {
                        finer.push((done, a));
                    }
                    if a < b {
                        finer.push((a, b));
                    }
                    done = b;
                }
                if done < end {
                    finer.push((done, end));
                }
            }
            spans = finer;
        }
        spans
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words<'t>(pre: &str, text: &'t str) -> Vec<&'t str> {
        PreTokenizer::new(pre)
            .unwrap()
            .split(text)
            .into_iter()
            .map(|(a, b)| &text[a..b])
            .collect()
    }

    #[test]
    fn smollm_takes_digits_apart() {
        assert_eq!(
            words("smollm", "a 12½  b"),
            ["a", " ", "1", "2", "½", " ", " b"]
        );
        assert_eq!(words("gpt-2", "a 12  b"), ["a", " 12", " ", " b"]);
    }

    #[test]
    fn llama3_takes_digits_by_three() {
        assert_eq!(
            words("llama-bpe", "x1234\n\ny"),
            ["x", "123", "4", "\n\n", "y"]
        );
    }

    #[test]
    fn unknown_names_are_refused() {
        assert!(PreTokenizer::new("no-such")
            .err()
            .unwrap()
            .contains("\"no-such\""));
    }
}
