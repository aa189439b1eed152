"""Compare Vitrine's features of real DINOv2 ViT-S/14 weights with those of the ONNX graph they come from.

    python benchmarks/dinov2_onnx.py dinov2_vits14.onnx photos/ --count 32

Needs onnx and onnxruntime. The graph does not include preprocessing, so both get the same input: shorter side 256,
centre crop 224, ImageNet's mean and standard deviation.
"""

import argparse
import copy
import time
from pathlib import Path

import onnx
import onnxruntime
import torch

import vitrine

CLASS_TOKENS = "/norm/Add_1_output_0"  # LN(z_L) of every token; the file's own output pools it further


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graph", type=Path)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--count", type=int, default=32)
    options = parser.parse_args()

    started = time.perf_counter()
    loaded = vitrine.load(str(options.graph))
    print(f"loaded in {time.perf_counter() - started:.2f} s: {loaded.record.config}")
    for note in loaded.notes:
        print(f"note: {note}")
    preprocess = loaded.preprocess.with_size(224)

    graph = onnx.load(options.graph)
    graph.graph.output.append(onnx.helper.make_empty_tensor_value_info(CLASS_TOKENS))
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])

    photos = sorted(options.photos.rglob("*.jpg"))
    step = max(len(photos) // options.count, 1)
    exact = copy.deepcopy(loaded.model).double()  # shows on which side a rounding error arises
    largest = relative = token = their_rounding = our_rounding = 0.0
    cosine, used = 1.0, photos[::step][: options.count]
    for path in used:
        image = preprocess(path.read_bytes(), name=str(path))[None]
        (expected,) = session.run([CLASS_TOKENS], {"input": image.numpy()})
        with torch.inference_mode():
            encoded = loaded.model.features(image)["encoded"]
            truth = exact.features(image.double())["encoded"]
        theirs, ours = torch.from_numpy(expected), encoded
        difference = (theirs - ours).abs().max().item()
        largest, relative = max(largest, difference), max(relative, difference / theirs.abs().max().item())
        their_rounding = max(their_rounding, (theirs - truth).abs().max().item())
        our_rounding = max(our_rounding, (ours - truth).abs().max().item())
        token = max(token, (theirs[:, 0] - ours[:, 0]).abs().max().item())
        cosine = min(cosine, torch.cosine_similarity(theirs[:, 0], ours[:, 0]).item())
    print(f"{len(used)} photos, all {ours.shape[1]} tokens: largest difference {largest:.2e}, ")
    print(f"{relative:.2e} of the largest feature; class token: {token:.2e}, smallest cosine {cosine:.7f}")
    print(f"from ours in fp64: the graph {their_rounding:.2e}, ours in fp32 {our_rounding:.2e}")


if __name__ == "__main__":
    main()
