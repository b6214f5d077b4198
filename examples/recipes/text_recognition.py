"""A recogniser of text lines behind `@batched`: ONNX Runtime in a plain function, images of variable width, no torch.

The recogniser of PP-OCRv4 has no mask, so padding changes what it reads. Lines share a batch only if they are equally
wide; to make that likely, each is stretched by a few percent to the next class of widths before it is queued.
"""

import asyncio
import importlib.util
import random
import re
import sys
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import onnxruntime
from PIL import Image, ImageDraw, ImageFont

from batchlib import batched

LINES, HEIGHT, CLASS = 120, 48, 32  # lines of text; pixels; pixels

# Only the weights of the package are used, so nothing of it is imported.
package = importlib.util.find_spec("rapidocr_onnxruntime")
if package is None or package.origin is None:
    sys.exit("No package rapidocr_onnxruntime: examples/recipes/README.md says how to install it.")
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(
    Path(package.origin).parent / "models/ch_PP-OCRv4_rec_infer.onnx", options, providers=["CPUExecutionProvider"]
)
(source,) = session.get_inputs()
characters = ["", *session.get_modelmeta().custom_metadata_map["character"].splitlines(), " "]


@batched(max_batch_size=16, group_by=np.shape, collate=np.stack)
def recognise(lines: np.ndarray) -> list[str]:
    """Texts of lines: (rows, 3, height, width)."""
    (scores,) = session.run(None, {source.name: lines})
    return [decode(row) for row in scores.argmax(-1)]


def decode(best: np.ndarray) -> str:
    """The best character at each place, a repetition counting once and the first character for nothing."""
    kept = best[(best != 0) & (best != np.append(-1, best[:-1]))]
    return "".join(characters[number] for number in kept)


def prepare(image: Image.Image) -> np.ndarray:
    """An item: channels first, from -1 to 1, stretched to the nearest class of widths."""
    width = HEIGHT * image.width / image.height
    image = image.convert("RGB").resize((max(1, round(width / CLASS)) * CLASS, HEIGHT), Image.Resampling.BILINEAR)
    return np.asarray(image, dtype=np.float32).transpose(2, 0, 1) / 127.5 - 1


def draw(text: str, size: int) -> Image.Image:
    """A line as a scanner would find it, in letters of `size` pixels."""
    font = ImageFont.load_default(size)
    image = Image.new("RGB", (round(font.getlength(text)) + size, round(1.5 * size)), "white")
    ImageDraw.Draw(image).text((size / 2, size / 6), text, font=font, fill="black")
    return image


def lines(count: int) -> list[str]:
    """One to five words of Python's help each."""
    words = sorted({word for topic in topics.values() for word in re.findall(r"\b[A-Za-z]{2,}\b", topic)})
    chance = random.Random(20)
    return [" ".join(chance.sample(words, chance.randint(1, 5))) for _ in range(count)]


async def serve(images: list[Image.Image]) -> list[str]:
    async def caller(image: Image.Image) -> str:
        return await recognise(prepare(image))

    async with recognise:
        return await asyncio.gather(*map(caller, images))


def padded_instead(images: list[Image.Image], size: int = 16) -> list[str]:
    """What not to do: batches in the order of arrival, each line padded to the widest of its batch."""
    read: list[str] = []
    for begin in range(0, len(images), size):
        items = [prepare(image) for image in images[begin : begin + size]]
        rows = np.zeros((len(items), 3, HEIGHT, max(item.shape[-1] for item in items)), np.float32)
        for row, item in zip(rows, items, strict=True):
            row[..., : item.shape[-1]] = item
        read += recognise.direct(rows)
    return read


def main() -> None:
    chance = random.Random(20)
    texts = lines(LINES)
    images = [draw(text, chance.randint(10, 20)) for text in texts]
    read = asyncio.run(serve(images))
    alone = [recognise.direct(prepare(image)[np.newaxis])[0] for image in images]

    print(f"{LINES} lines, {recognise.statistics().mean_batch_size:.1f} in a batch on average; the first: {read[0]!r}.")
    print(f"Read as drawn, but for spaces at the ends: {sum(map(str.__eq__, map(str.strip, read), texts))}.")
    changed = [pair for pair in zip(alone, padded_instead(images), strict=True) if pair[0] != pair[1]]
    worst = max(changed, key=lambda pair: pair[0].strip() != pair[1].strip(), default=None)
    print(f"Read otherwise if padded: {len(changed)}, for example {worst}.")
    different = [(one, other) for one, other in zip(alone, read, strict=True) if one != other]
    print(f"Read otherwise than one at a time: {len(different)}.")
    if different:
        sys.exit(f"FAILED: none is allowed. Alone and in a batch: {different[0]}")


if __name__ == "__main__":
    main()
