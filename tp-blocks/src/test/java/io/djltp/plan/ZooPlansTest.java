package io.djltp.plan;

import ai.djl.basicmodelzoo.basic.Mlp;
import ai.djl.basicmodelzoo.cv.classification.AlexNet;
import ai.djl.basicmodelzoo.cv.classification.GoogLeNet;
import ai.djl.basicmodelzoo.cv.classification.LeNet;
import ai.djl.basicmodelzoo.cv.classification.MobileNetV1;
import ai.djl.basicmodelzoo.cv.classification.MobileNetV2;
import ai.djl.basicmodelzoo.cv.classification.NiN;
import ai.djl.basicmodelzoo.cv.classification.SqueezeNet;
import ai.djl.basicmodelzoo.cv.classification.VGG;
import ai.djl.basicmodelzoo.cv.object_detection.ssd.SingleShotDetection;
import ai.djl.basicmodelzoo.cv.object_detection.yolo.YOLOV3;
import ai.djl.basicmodelzoo.tabular.TabNet;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.convolutional.Conv2d;
import ai.djl.nn.pooling.Pool;
import ai.djl.training.initializer.NormalInitializer;
import ai.djl.training.loss.Loss;

import io.djltp.internal.parameters.BlockWalk;
import io.djltp.testing.Network;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Supplier;

/** The models of DJL's zoo that need no download, by the plan that needs no names. */
public class ZooPlansTest {

    private static final int CLASSES = 5;

    /** The mean of the squares of all outputs, such as the three of a detection. */
    private static final class MeanSquares extends Loss {

        MeanSquares() {
            super("squares");
        }

        @Override
        public NDArray evaluate(NDList labels, NDList predictions) {
            NDArray sum = predictions.get(0).square().mean();
            for (NDArray other : predictions.subNDList(1)) {
                sum = sum.add(other.square().mean());
            }
            return sum;
        }
    }

    private static PlanCase zoo(String name, Supplier<Block> block, int rows, long... row) {
        return PlanCase.of(
                        name,
                        () -> withoutDropout(block.get()),
                        kind -> Plan.builder().optAuto(true).optRanks(kind.ranks()).build(),
                        PlannedNetworks.numbers(rows, row))
                .with(parallel -> new MeanSquares());
    }

    @DataProvider
    public static Object[][] models() {
        return new Object[][] {
            {zoo("Mlp", () -> new Mlp(12, CLASSES, new int[] {9, 7}), 3, 12)},
            {zoo("LeNet", ZooPlansTest::leNet, 2, 1, 28, 28)},
            {zoo("ResNet", PlannedNetworks::resnet, 2, 1, 8, 8)},
            {zoo("SSD", ZooPlansTest::detection, 2, 1, 16, 16)},
            {zoo("TabNet", () -> TabNet.builder().setInputDim(6).setOutDim(CLASSES).build(), 4, 6)}
        };
    }

    private static Block leNet() {
        return LeNet.builder().setNumChannels(new int[] {2, 3, 12, 9}).setOutSize(CLASSES).build();
    }

    private static Block detection() {
        SequentialBlock base =
                new SequentialBlock()
                        .add(
                                Conv2d.builder()
                                        .setKernelShape(new Shape(3, 3))
                                        .optPadding(new Shape(1, 1))
                                        .setFilters(4)
                                        .build())
                        .add(Pool.maxPool2dBlock(new Shape(2, 2), new Shape(2, 2)));
        return SingleShotDetection.builder()
                .setNumClasses(2)
                .setNumFeatures(1)
                .optGlobalPool(true)
                .setRatios(sizes(1f, 2f, 0.5f))
                .setSizes(sizes(0.2f, 0.3f))
                .setBaseNetwork(base)
                .build();
    }

    private static List<List<Float>> sizes(Float... each) {
        List<List<Float>> all = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            all.add(List.of(each));
        }
        return all;
    }

    /** Of what is added before a batch normalization the gradient is 0 but for rounding. */
    private static Block withoutDropout(Block block) {
        PlannedNetworks.switchDropoutOff(block);
        block.setInitializer(new NormalInitializer(0.02f), Parameter.Type.BIAS);
        block.setInitializer(new NormalInitializer(0.02f), Parameter.Type.BETA);
        return block;
    }

    @Test(dataProvider = "models", timeOut = 120_000)
    public void areTrainedAsByDjl(PlanCase model) {
        if (List.of("LeNet", "ResNet", "SSD").contains(model.name())) {
            Network.skipWhereConvolutionsAreWrong();
        }
        model.assertTrainedAsByDjl();
    }

    @DataProvider
    public static Object[][] large() {
        return new Block[][] {
            {new Mlp(12, CLASSES, new int[] {9, 7})},
            {AlexNet.builder().setOutSize(CLASSES).build()},
            {GoogLeNet.builder().setOutSize(1024).build()},
            {MobileNetV1.builder().setOutSize(9).build()},
            {MobileNetV2.builder().setOutSize(9).build()},
            {NiN.builder().build()},
            {SqueezeNet.squeezenet(CLASSES)},
            {VGG.builder().setNumLayers(11).setOutSize(CLASSES).build()},
            {YOLOV3.builder().setNumClasses(2).build()}
        };
    }

    /** Blocks are replaced, and come back, also of models that are too large to train in a test. */
    @Test(dataProvider = "large", timeOut = 120_000)
    public void areMadeParallelAndPlainAgain(Block block) {
        List<String> before = classes(block);
        Assert.assertSame(TensorParallel.parallelize(block, Plan.auto()), block);
        Assert.assertTrue(
                classes(block).stream().anyMatch(name -> name.startsWith("io.djltp.")), "" + block);
        TensorParallel.serialize(block);
        Assert.assertEquals(classes(block), before);
    }

    private static List<String> classes(Block block) {
        List<String> names = new ArrayList<>();
        BlockWalk.of(block, (each, path, certain) -> names.add(each.getClass().getName()));
        return names;
    }
}
