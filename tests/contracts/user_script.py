"""What a user writes after reading the README: type-checked by `make types`, never run."""

from pathlib import Path

import torch

import vitrine
from vitrine import VitClassifier

predictor = vitrine.Predictor.open("box")
for answer in predictor.predict(["photo.jpg"])[0].answers:
    print(f"{answer.probability:.0%} {answer.label}")

paths = sorted(Path("photos").glob("*/*.jpg"))
labels = [path.parent.name for path in paths]
classifier = VitClassifier()
classifier.fit(paths[::2], labels[::2])
print(classifier.score(paths[1::2], labels[1::2]))

model = vitrine.create_model("ViT-Ti/16", num_classes=10, image_size=64)
images = torch.randn(2, 3, 64, 64)
features: dict[str, torch.Tensor] = model.features(images)
for layer, weights in model.attention(images):
    print(layer, weights.shape)

checked = vitrine.check("photos", out="checked")
print(checked.exit_code)
run = vitrine.finetune(Path("photos"), model="box", epochs=3, set=["training.lr=3e-4"], device="cpu")
folder: Path = run.folder
best: float | None = run.accuracy
again = vitrine.resume(folder)
page = vitrine.report(str(folder), out="report.html")
scores = vitrine.evaluate(folder, Path("photos"), out="scores")
if scores.top1 is not None:
    print(scores.top1.value, scores.num_images)
shots = vitrine.fewshot(folder, "photos", shots=[1, 5], l2=1024.0)
predicted = vitrine.predict(folder, ["a.jpg", Path("b.jpg")], out="predictions.csv", top=3)
print(predicted.num_pictures, predicted.predictions[0].answers[0].label)
embedded = vitrine.embed(pictures="photos", out="features.npy")
print(embedded.width)
exported = vitrine.export(folder, to="onnx", images="photos")
print(exported.folder)
inspected = vitrine.inspect("box", "photos")
converted = vitrine.convert(folder, "weights.npz", to="npz")
print(converted.num_identical)
for cost in vitrine.list_models(size=384):
    print(cost.name, cost.params)
loaded = vitrine.load(folder)
vitrine.save(loaded.model, "copy", classes=loaded.classes)

try:
    vitrine.finetune("nowhere")
except FileNotFoundError:
    pass
except vitrine.VitrineError as error:
    print(error.problem, error.option, error.advice)
