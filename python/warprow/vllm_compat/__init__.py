# SPDX-License-Identifier: Apache-2.0
"""vLLM's offline interface over this engine, for programs that were written for `vllm.LLM`. One of these lines points them here:

    import warprow.vllm_compat as vllm                      in place of `import vllm`
    import warprow.vllm_compat; warprow.vllm_compat.install()    `import vllm`, also of other packages, finds this from now on
    python -m warprow.vllm_compat lm_eval --model vllm ...       a program, unchanged

docs/python.md says what differs.
"""

from ..beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from ..flat_logprobs import FlatLogprobs
from ..lora import LoRARequest
from ..outputs import CompletionOutput, Logprob, RequestOutput
from ..pooling import (
    ClassificationOutput,
    EmbeddingOutput,
    PoolingOutput,
    PoolingParams,
    PoolingRequestOutput,
    ScoringOutput,
)
from ..sampling_params import RequestOutputKind, StructuredOutputsParams
from ._inputs import EmbedsPrompt, TextPrompt, TokensPrompt, get_tokenizer, resolve_chat_template
from ._llm import LLM, GuidedDecodingParams, SamplingParams
from ._modules import VERSION as __version__
from ._modules import install

# vLLM has a class for each kind of output.
ClassificationRequestOutput = EmbeddingRequestOutput = ScoringRequestOutput = PoolingRequestOutput

__all__ = [
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EmbedsPrompt",
    "FlatLogprobs",
    "GuidedDecodingParams",
    "LLM",
    "LoRARequest",
    "Logprob",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
    "get_tokenizer",
    "install",
    "resolve_chat_template",
]
