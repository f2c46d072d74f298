package io.djltp.plan;

import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.nn.transformer.BertBlock;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;

import io.djltp.layout.ParallelMode;
import io.djltp.parameters.BlockWalk;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Network;
import io.djltp.testing.Network.Batches;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.List;
import java.util.function.Supplier;
import java.util.stream.Stream;

/**
 * Models that a plan makes parallel are trained as by DJL's own trainer without the plan, their
 * files load where there is no plan, and they become DJL's blocks again.
 */
public class PlansEqualDjlTest {

    private static final TrainerKind TENSOR_2 = new TrainerKind(ParallelMode.TENSOR, 2);
    private static final TrainerKind TENSOR_3 = new TrainerKind(ParallelMode.TENSOR, 3);

    private record Case(
            String name, Supplier<Block> block, Plan plan, Batches batches, TrainerKind... kinds) {

        @Override
        public String toString() {
            return name;
        }
    }

    @DataProvider
    public static Object[][] models() {
        Plan bert =
                Plan.builder()
                        .add("*Bert*", Style.bert())
                        .add("Linear", Style.row().scatterInput())
                        .build();
        return Stream.of(
                        new Case(
                                "ResNet",
                                PlannedNetworks::resnet,
                                Plan.of("Linear", Style.column().gatherOutput()),
                                PlannedNetworks.images(4),
                                TENSOR_2,
                                TENSOR_3),
                        new Case(
                                "Bert",
                                () -> PlannedNetworks.bert(PlannedNetworks.small(), false),
                                bert,
                                PlannedNetworks.sentences(4),
                                TENSOR_2,
                                TENSOR_3),
                        new Case(
                                "custom",
                                () -> new PlannedNetworks.Residual(6, PlannedNetworks.CLASSES),
                                PlannedNetworks.residualPlan(),
                                Network.classification(5, 6, PlannedNetworks.CLASSES),
                                TENSOR_2,
                                TENSOR_3,
                                new TrainerKind(ParallelMode.TENSOR, 4),
                                new TrainerKind(ParallelMode.DATA, 2),
                                TrainerKind.mesh(2, 2)))
                .map(each -> new Object[] {each})
                .toArray(Object[][]::new);
    }

    @Test(dataProvider = "models", timeOut = 120_000)
    public void areTrainedAsByDjl(Case model) {
        PlanTraining plain = PlanTraining.of(TrainerKind.PLAIN, make(model, false), model.batches);
        for (TrainerKind kind : model.kinds) {
            PlanTraining.of(kind, make(model, true), model.batches).assertSame(plain, 1e-5);
        }
    }

    private static Block make(Case model, boolean cut) {
        Block block = model.block.get();
        return cut ? TensorParallel.parallelize(block, model.plan) : block;
    }

    /** Values before the plan, a file after it, and the way back. */
    @Test(dataProvider = "models", timeOut = 120_000)
    public void keepTheirValuesThereAndBack(Case model)
            throws IOException, MalformedModelException {
        Path folder = Files.createTempDirectory("plan");
        try (NDManager manager = NDManager.newBaseManager();
                Model trained = Model.newInstance("net");
                Model loaded = Model.newInstance("net")) {
            NDList[] batch = model.batches.make(manager, 0);
            Engine.getInstance().setRandomSeed(42);
            Block block = model.block.get();
            trained.setBlock(block);
            try (Trainer trainer = trained.newTrainer(PlanTraining.config(0.1f))) {
                trainer.initialize(batch[0].getShapes());
            }
            List<float[]> before = TrainingRun.weights(block);
            List<String> names = block.getParameters().keys();
            Assert.assertSame(TensorParallel.parallelize(block, model.plan), block);
            Assert.assertEquals(block.getParameters().keys(), names);
            assertSame(TrainingRun.weights(block), before, 0);
            try (Trainer trainer = TENSOR_2.open(trained, PlanTraining.config(0.1f))) {
                trainer.initialize(batch[0].getShapes());
                PlanTraining.step(trainer, batch);
                trained.save(folder, "net");
            }
            List<float[]> after = TrainingRun.weights(block);
            loaded.setBlock(model.block.get());
            loaded.load(folder, "net");
            assertSame(TrainingRun.weights(loaded.getBlock()), after, 0);
            NDArray output = predict(manager, block, batch[0]);
            ArrayAssert.assertClose(
                    predict(manager, loaded.getBlock(), batch[0]), output, 1e-6, "loaded");
            Assert.assertSame(TensorParallel.serialize(block), block);
            assertPlain(block);
            assertSame(TrainingRun.weights(block), after, 0);
            Assert.assertEquals(block.getParameters().keys(), names);
            ArrayAssert.assertClose(predict(manager, block, batch[0]), output, 1e-6, "plain");
            byte[] file = Files.readAllBytes(folder.resolve("net-0000.params"));
            trained.save(folder, "net");
            Assert.assertEquals(Files.readAllBytes(folder.resolve("net-0000.params")), file);
        } finally {
            try (Stream<Path> files = Files.walk(folder)) {
                files.sorted(Comparator.reverseOrder()).forEach(file -> file.toFile().delete());
            }
        }
    }

    private static void assertPlain(Block block) {
        BlockWalk.of(
                block,
                (each, path, certain) -> {
                    String type = each.getClass().getName();
                    Assert.assertTrue(
                            type.startsWith("ai.djl.")
                                    || type.startsWith(PlannedNetworks.class.getName()),
                            path + " is a " + type);
                });
    }

    private static void assertSame(List<float[]> actual, List<float[]> expected, double by) {
        Assert.assertEquals(actual.size(), expected.size());
        for (int i = 0; i < actual.size(); i++) {
            ArrayAssert.assertClose(actual.get(i), expected.get(i), by, "parameter " + i);
        }
    }

    private static NDArray predict(NDManager manager, Block block, NDList data) {
        ParameterStore store = new ParameterStore(manager, false);
        NDList input = new NDList();
        data.forEach(array -> input.add(array.duplicate()));
        return block.forward(store, input, false).head();
    }

    /**
     * The preset that DJL has, by the plan that needs no names, at a rate at which rounding stays.
     */
    @Test(timeOut = 120_000)
    public void aPresetOfBertIsMadeParallelByItself() {
        train(TENSOR_3, true).assertSame(train(TrainerKind.PLAIN, false), 1e-5);
    }

    private static PlanTraining train(TrainerKind kind, boolean parallel) {
        Block block = PlannedNetworks.bert(BertBlock.builder().nano(), false);
        if (parallel) {
            TensorParallel.parallelize(block, Plan.auto());
        }
        return PlanTraining.of(kind, block, PlannedNetworks.sentences(4), 0.001f);
    }

    @Test(timeOut = 60_000)
    public void aSequenceIsMadeParallelByItself() {
        Network.of(
                        cut -> {
                            SequentialBlock block =
                                    new SequentialBlock()
                                            .add(Linear.builder().setUnits(9).build())
                                            .add(Activation.tanhBlock())
                                            .add(Linear.builder().setUnits(5).build())
                                            .add(Activation.reluBlock())
                                            .add(Linear.builder().setUnits(3).build());
                            return cut ? TensorParallel.parallelize(block, Plan.auto()) : block;
                        },
                        Loss::l2Loss,
                        Network.regression(4, 6, 3))
                .assertEqual(TENSOR_2, TENSOR_3, TrainerKind.mesh(2, 2));
    }
}
