package io.djltp.examples.plan;

import ai.djl.basicmodelzoo.cv.classification.ResNetV1;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.loss.Loss;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;

/** ResNet-18 of DJL's model zoo for ImageNet, its last layer replaced by a head that is cut. */
final class ResnetModel implements PlannedModel {

    private static final Shape IMAGE = new Shape(3, 224, 224);
    private static final int IMAGENET_CLASSES = 1000;

    @Override
    public String getName() {
        return "resnet";
    }

    @Override
    public String getDescription() {
        return "ResNet-18 of DJL's model zoo, with a head that is cut in place of its last layer";
    }

    @Override
    public Block create(Integer classes) {
        return create(IMAGE, classes == null ? IMAGENET_CLASSES : classes);
    }

    /** Puts a head in the place of the last layer, which a flattening of two axes follows. */
    static Block create(Shape image, int classes) {
        SequentialBlock network =
                ResNetV1.builder()
                        .setImageShape(image)
                        .setNumLayers(18)
                        .setOutSize(classes)
                        .build();
        network.removeLastBlock();
        network.removeLastBlock();
        return network.add(
                ClassificationHead.builder().setUnits(classes).optBatchShardedInput(true).build());
    }

    @Override
    public Shape[] inputs(int batch) {
        return new Shape[] {new Shape(batch).addAll(IMAGE)};
    }

    @Override
    public Loss loss() {
        return new VocabParallelCrossEntropyLoss();
    }
}
