package io.djltp.training;

import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.frozen;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.util.PairList;

import io.djltp.job.Job;
import io.djltp.layout.ParallelMode;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.ThreadedJob;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.torch.Autograd;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;

/**
 * What is written into a parameter that is not cut, while its trainer is open, comes to all ranks:
 * losses, predictions and weights are those of DJL's own trainer after the same write.
 */
public class ReplicaWritesTest {

    private static final Shape INPUT = new Shape(6, 4);
    private static final double TOLERANCE = 1e-5;
    private static final List<Consumer<NDArray>> WRITES =
            List.of(
                    array -> array.set(values(array.size())),
                    array -> array.muli(0.5f),
                    array -> array.addi(array.getManager().ones(array.getShape())),
                    array -> array.set(new NDIndex("0"), 0.25f),
                    array -> array.get(1).set(values(array.size() / array.getShape().get(0))),
                    array -> array.getManager().ones(array.getShape()).mul(0.1f).copyTo(array));

    @DataProvider
    public Object[][] kinds() {
        return new Object[][] {
            {new TrainerKind(ParallelMode.TENSOR, 2)},
            {new TrainerKind(ParallelMode.DATA, 2)},
            {new TrainerKind(ParallelMode.MIXED, 2)},
            {TrainerKind.mesh(2, 2)},
        };
    }

    /** Of a weight and of a bias, each in another place of a training. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void comeToAllRanks(TrainerKind kind) {
        for (int i = 0; i < WRITES.size(); i++) {
            assertEqualsPlain(kind, false, WRITES.get(i), "write " + i);
        }
    }

    /** A parameter without a gradient, as after a freeze. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void ofAFrozenLayer(TrainerKind kind) {
        assertEqualsPlain(kind, true, WRITES.get(0), "frozen");
    }

    private static void assertEqualsPlain(
            TrainerKind kind, boolean frozen, Consumer<NDArray> write, String what) {
        List<float[]> expected = train(TrainerKind.PLAIN, frozen, write);
        List<float[]> actual = train(kind, frozen, write);
        for (int i = 0; i < expected.size(); i++) {
            ArrayAssert.assertClose(
                    actual.get(i),
                    expected.get(i),
                    TOLERANCE,
                    kind + ", " + what + ", number " + i);
        }
    }

    /** Returns predictions and losses after each write, and the weights. */
    private static List<float[]> train(TrainerKind kind, boolean frozen, Consumer<NDArray> write) {
        List<float[]> seen = new ArrayList<>();
        try (Model model = model(frozen);
                NDManager manager = NDManager.newBaseManager()) {
            try (Trainer trainer = open(kind, model)) {
                NDArray data = TrainingRun.random(manager, 1, INPUT.getShape());
                NDArray labels = TrainingRun.random(manager, 2, 6, 3);
                write(model, 0, write);
                seen.add(trainer.evaluate(new NDList(data)).head().toFloatArray());
                for (int step = 0; step < 6; step++) {
                    write(model, step % 2, write);
                    NDList output = trainer.evaluate(new NDList(data));
                    NDArray loss = trainer.getLoss().evaluate(new NDList(labels), output);
                    seen.add(loss.toFloatArray());
                    seen.add(new float[] {TrainingRun.backward(trainer, data, labels)});
                    if (step > 3) {
                        write(model, 0, write); // and is updated then
                    }
                    trainer.step();
                }
                write(model, 1, write);
            }
            seen.addAll(TrainingRun.weights(model.getBlock()));
        }
        return seen;
    }

    /** A save and a close see the write, and replicas that are alike. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void areSaved(TrainerKind kind) throws Exception {
        Path folder = Files.createTempDirectory("replicas");
        try (Model model = model(false);
                Model loaded = model(false)) {
            try (Trainer trainer = open(kind, model)) {
                ParallelTrainer parallel = (ParallelTrainer) trainer;
                step(trainer);
                step(trainer);
                write(model, 0, WRITES.get(0));
                parallel.save(folder, "net");
                assertAlike(parallel, model.getBlock().getParameters().valueAt(0));
                step(trainer);
                write(model, 0, WRITES.get(0)); // after a step that was not compared
            }
            float[] written = values(array(model, 0).size());
            Assert.assertEquals(array(model, 0).toFloatArray(), written);
            loaded.load(folder, "net");
            Assert.assertEquals(array(loaded, 0).toFloatArray(), written);
        } finally {
            Files.deleteIfExists(folder.resolve("net-0000.params"));
            Files.delete(folder);
        }
    }

    private static void assertAlike(ParallelTrainer trainer, Parameter parameter) {
        float[] first = trainer.getParameterStore(0).getHeld(parameter).toFloatArray();
        for (int rank = 1; rank < trainer.getRanks().size(); rank++) {
            float[] other = trainer.getParameterStore(rank).getHeld(parameter).toFloatArray();
            ArrayAssert.assertBitEqual(other, first, "rank " + rank);
        }
    }

    /** What blocks change in their passes stays theirs; a write comes to the next evaluation. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void ofRunningStatistics(TrainerKind kind) {
        List<float[]> outputs = new ArrayList<>();
        for (TrainerKind each : List.of(TrainerKind.PLAIN, kind)) {
            Engine.getInstance().setRandomSeed(3);
            try (Model model = Model.newInstance("net", Device.cpu());
                    NDManager manager = NDManager.newBaseManager()) {
                Block norm = BatchNorm.builder().build();
                model.setBlock(sequence(norm, first(each.isParallel(), 6), row(true, 3)));
                try (Trainer trainer = open(each, model)) {
                    NDList data = new NDList(TrainingRun.random(manager, 1, INPUT.getShape()));
                    norm.getParameters().get("runningMean").getArray().set(values(4));
                    outputs.add(trainer.evaluate(data).head().toFloatArray());
                }
            }
        }
        ArrayAssert.assertClose(outputs.get(1), outputs.get(0), TOLERANCE, "" + kind);
    }

    /** One that lies turned in memory, and is saved. */
    @Test(timeOut = 60_000)
    public void ofATurnedWeight() throws Exception {
        Path folder = Files.createTempDirectory("turned");
        try (Model model = model(false);
                Model loaded = model(false)) {
            Block body = model.getBlock().getChildren().valueAt(0);
            body.setInitializer(
                    (m, shape, type) -> m.ones(new Shape(4, 5)).transpose(), Parameter.Type.WEIGHT);
            try (Trainer trainer = open(new TrainerKind(ParallelMode.DATA, 2), model)) {
                ParallelTrainer parallel = (ParallelTrainer) trainer;
                step(trainer);
                write(model, 0, WRITES.get(0));
                step(trainer);
                Parameter weight = model.getBlock().getParameters().valueAt(0);
                assertAlike(parallel, weight);
                parallel.save(folder, "net");
                loaded.load(folder, "net");
                float[] trained = parallel.getParameterStore(0).getHeld(weight).toFloatArray();
                Assert.assertEquals(array(loaded, 0).toFloatArray(), trained);
                Assert.assertNotEquals(trained, values(trained.length));
            }
        } finally {
            Files.deleteIfExists(folder.resolve("net-0000.params"));
            Files.delete(folder);
        }
    }

    /** Processes that write alike go on as one; the file waits for the ranks of the others. */
    @Test(timeOut = 60_000)
    public void ofAllProcesses() throws Exception {
        List<float[]> expected = process(TrainerKind.PLAIN, null);
        for (ParallelMode mode : new ParallelMode[] {ParallelMode.TENSOR, ParallelMode.DATA}) {
            for (List<float[]> actual : ThreadedJob.run(job -> process(null, config(job, mode)))) {
                for (int i = 0; i < expected.size(); i++) {
                    ArrayAssert.assertClose(
                            actual.get(i), expected.get(i), TOLERANCE, mode + ", number " + i);
                }
            }
        }
    }

    private static List<float[]> process(TrainerKind kind, ParallelConfig config) {
        try (Model model = written();
                NDManager manager = NDManager.newBaseManager()) {
            try (Trainer trainer =
                    config == null
                            ? kind.open(model, config())
                            : new ParallelTrainer(model, config(), config)) {
                trainer.initialize(INPUT);
                for (int i = 0; i < 3; i++) {
                    write(model, 0, WRITES.get(0));
                    if (trainer instanceof ParallelTrainer parallel && config.getJob() != null) {
                        assertNotSavedAlone(parallel, config.getJob());
                    }
                    trainer.evaluate(new NDList(manager.ones(INPUT))).close();
                    step(trainer);
                }
                write(model, 1, WRITES.get(1));
            }
            return TrainingRun.weights(model.getBlock());
        }
    }

    private static void assertNotSavedAlone(ParallelTrainer trainer, Job job) {
        if (job.getProcess() == 0) {
            IllegalStateException e =
                    Assert.expectThrows(
                            IllegalStateException.class,
                            () -> trainer.save(Path.of("never"), "written"));
            Assert.assertTrue(e.getMessage().contains("save the model after"), e.getMessage());
        }
    }

    /** Where one process has written, and the other has not, the job ends and says so. */
    @Test(timeOut = 60_000)
    public void ofOneProcessEndTheJob() throws Exception {
        List<String> ends =
                ThreadedJob.run(
                        job -> {
                            try (Model model = written();
                                    Trainer trainer =
                                            new ParallelTrainer(
                                                    model,
                                                    config(),
                                                    config(job, ParallelMode.DATA))) {
                                trainer.initialize(INPUT);
                                if (job.getProcess() == 1) {
                                    write(model, 0, WRITES.get(0));
                                }
                                step(trainer);
                                return "trained";
                            } catch (RuntimeException e) {
                                return e.toString();
                            }
                        });
        for (String end : ends) {
            Assert.assertTrue(end.contains("the values written into 01"), ends.toString());
        }
    }

    /** A table of numbers that are not trained. */
    private static final class Table extends AbstractBlock {

        private final Parameter numbers =
                addParameter(
                        Parameter.builder()
                                .setName("numbers")
                                .setType(Parameter.Type.OTHER)
                                .optRequiresGrad(false)
                                .build());

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            NDArray x = inputs.singletonOrThrow();
            NDArray held = store.getValue(numbers, x.getDevice(), training);
            try (NDArray values = held.toType(DataType.FLOAT32, true)) {
                return new NDList(x.add(values));
            }
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputShapes) {
            return inputShapes;
        }
    }

    /** Processes that have loaded other integers than the first have its integers from then on. */
    @Test(timeOut = 60_000)
    public void integersAreThoseOfTheFirstProcess() throws Exception {
        for (DataType type : new DataType[] {DataType.INT32, DataType.INT64, DataType.BOOLEAN}) {
            List<float[]> tables =
                    ThreadedJob.run(
                            job -> {
                                Table table = new Table();
                                try (Model model = Model.newInstance("table", Device.cpu())) {
                                    model.setBlock(sequence(table, linear(3)));
                                    float[] own = {1, job.getProcess(), 0, 1};
                                    table.numbers.setArray(
                                            model.getNDManager().create(own).toType(type, true));
                                    ParallelConfig ranks = config(job, ParallelMode.DATA);
                                    try (ParallelTrainer trainer =
                                            new ParallelTrainer(model, config(), ranks)) {
                                        trainer.initialize(INPUT);
                                        return trainer.getParameterStore(0)
                                                .getValue(table.numbers, Device.cpu(), false)
                                                .toType(DataType.FLOAT32, true)
                                                .toFloatArray();
                                    }
                                }
                            });
            for (float[] table : tables) {
                Assert.assertEquals(table, new float[] {1, 0, 0, 1}, "" + type);
            }
        }
    }

    private static ParallelConfig config(Job job, ParallelMode mode) {
        return ParallelConfig.builder().setMode(mode).setRanks(2).optJob(job).build();
    }

    /** A model whose values do not come from a generator, which threads share. */
    private static Model written() {
        Model model = model(false);
        Block block = model.getBlock();
        block.initialize(model.getNDManager(), model.getDataType(), INPUT);
        block.getParameters().values().forEach(p -> p.getArray().set(values(p.getShape().size())));
        return model;
    }

    private static Model model(boolean frozen) {
        Engine.getInstance().setRandomSeed(3);
        Model model = Model.newInstance("net", Device.cpu());
        Block body = linear(5);
        model.setBlock(sequence(body, tanh(), first(true, 7), tanh(), row(true, 3)));
        if (frozen) {
            frozen(body);
        }
        return model;
    }

    private static DefaultTrainingConfig config() {
        return new DefaultTrainingConfig(new HalfSquareLoss())
                .optDevices(new Device[] {Device.cpu()});
    }

    private static Trainer open(TrainerKind kind, Model model) {
        Trainer trainer = kind.open(model, config());
        trainer.initialize(INPUT);
        return trainer;
    }

    private static void step(Trainer trainer) {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray data = TrainingRun.random(manager, 1, INPUT.getShape());
            TrainingRun.backward(trainer, data, TrainingRun.random(manager, 2, 6, 3));
            trainer.step();
        }
    }

    /** Outside of a graph, as DJL's own trainer needs it. */
    @SuppressWarnings("try") // a scope is used by being open
    private static void write(Model model, int parameter, Consumer<NDArray> write) {
        try (Autograd.GradMode mode = Autograd.gradMode(false)) {
            write.accept(array(model, parameter));
        }
    }

    private static NDArray array(Model model, int parameter) {
        return model.getBlock().getParameters().valueAt(parameter).getArray();
    }

    private static float[] values(long size) {
        float[] values = new float[(int) size];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) Math.sin(i + 1);
        }
        return values;
    }
}
