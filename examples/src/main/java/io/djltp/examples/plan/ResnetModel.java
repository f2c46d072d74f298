package io.djltp.examples.plan;

import ai.djl.basicmodelzoo.cv.classification.ResNetV1;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;

import io.djltp.examples.OptimizerName;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;

import java.util.Set;

/** ResNet-18 of DJL's model zoo for ImageNet, its last layer replaced by a head that is cut. */
final class ResnetModel implements PlannedModel {

    private static final Shape IMAGE = new Shape(3, 224, 224);
    private static final int IMAGENET_CLASSES = 1000;
    private static final int BATCH = 512;

    @Override
    public String getName() {
        return "resnet";
    }

    @Override
    public String getDescription() {
        return "ResNet-18 of DJL's model zoo, with a head that is cut in place of its last layer";
    }

    @Override
    public Set<String> getOptions() {
        return Set.of("--classes", "--optimizer");
    }

    @Override
    public int getBatch() {
        return BATCH;
    }

    @Override
    public OptimizerName getOptimizer() {
        return OptimizerName.ADAGRAD;
    }

    @Override
    public Planned create(PlanOptions options, int batch) {
        int classes = options.classes == null ? IMAGENET_CLASSES : options.classes;
        return new Planned(
                create(IMAGE, classes),
                new Shape[] {new Shape(batch).addAll(IMAGE)},
                new VocabParallelCrossEntropyLoss());
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
}
