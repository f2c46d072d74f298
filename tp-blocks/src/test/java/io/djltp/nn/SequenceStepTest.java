package io.djltp.nn;

import static io.djltp.nn.SequenceParallelTest.body;
import static io.djltp.nn.SequenceParallelTest.column;
import static io.djltp.nn.SequenceParallelTest.norm;
import static io.djltp.nn.SequenceParallelTest.row;
import static io.djltp.testing.Blocks.gelu;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.sum;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;

import io.djltp.collective.CollectiveCounts;
import io.djltp.job.Job;
import io.djltp.layout.ParallelMode;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Configs;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.ThreadedJob;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;

/** What a step with cut tokens computes and communicates, on one process and on several. */
public class SequenceStepTest {

    private static final double TOLERANCE = 1e-5;

    /** Conformance case 14 and the table of counts: the gathered input of a layer is kept. */
    @Test(timeOut = 60_000)
    public void collectivesOfAStep() {
        List<String> expected =
                List.of(
                        "3 all-gather, 2 reduce-scatter", // a layer each: 1 and 1; the last gather
                        "3 all-gather, 2 reduce-scatter", // a layer each: 1 and 1; the first
                        // scatter
                        "1 all-reduce"); // of norms and row-parallel biases together
        for (int ranks : new int[] {2, 3}) {
            Assert.assertEquals(
                    counts(new TrainerKind(ParallelMode.TENSOR, ranks), body(true, true, 2)),
                    expected);
        }
        Assert.assertEquals(
                counts(new TrainerKind(ParallelMode.TENSOR, 1), body(true, true, 2)),
                List.of("none", "none", "none"));
    }

    private static List<String> counts(TrainerKind kind, Block block) {
        List<CollectiveCounts> at = new ArrayList<>();
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(block);
            NDArray data = TrainingRun.random(manager, 1, 4, 7, 6);
            NDList labels = new NDList(TrainingRun.random(manager, 2, 4, 7, 6));
            ParallelConfig config =
                    ParallelConfig.builder()
                            .setMode(kind.mode())
                            .setRanks(kind.ranks())
                            .optDriftCheck(0)
                            .build();
            try (ParallelTrainer trainer = new ParallelTrainer(model, config(0.1f), config)) {
                trainer.initialize(data.getShape());
                for (int step = 0; step < 2; step++) {
                    at.clear();
                    at.add(trainer.getCollectiveCounts());
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDList output = trainer.forward(new NDList(data), labels);
                        NDArray loss = trainer.getLoss().evaluate(labels, output);
                        at.add(trainer.getCollectiveCounts());
                        collector.backward(loss);
                    }
                    at.add(trainer.getCollectiveCounts());
                    trainer.step();
                    at.add(trainer.getCollectiveCounts());
                }
            }
        }
        List<String> counts = new ArrayList<>();
        for (int i = 1; i < at.size(); i++) {
            counts.add(at.get(i).minus(at.get(i - 1)).toString());
        }
        return counts;
    }

    /** Conformance case 24: the replicas of norms and biases stay the same, bit for bit. */
    @Test(timeOut = 60_000)
    public void replicasAreBitEqualAfterTheSum() {
        for (TrainerKind kind :
                List.of(new TrainerKind(ParallelMode.TENSOR, 3), TrainerKind.mesh(2, 2))) {
            Block block = body(true, true, 2);
            train(
                    kind,
                    block,
                    Loss.l2Loss(),
                    trainer -> {
                        ParallelTrainer parallel = (ParallelTrainer) trainer;
                        for (Parameter parameter : block.getParameters().values()) {
                            float[] first = value(parallel, 0, parameter);
                            for (int rank = 1; rank < kind.ranks(); rank++) {
                                float[] other = value(parallel, rank, parameter);
                                if (parameter.getShape().size() == other.length) { // not cut
                                    ArrayAssert.assertBitEqual(other, first, parameter.getName());
                                }
                            }
                        }
                        return null;
                    });
        }
    }

    private static float[] value(ParallelTrainer trainer, int rank, Parameter parameter) {
        return trainer.getParameterStore(rank).getValue(parameter, null, true).toFloatArray();
    }

    /** Only the second of two processes has used a parameter, and it with its tokens. */
    @Test(timeOut = 120_000)
    public void aParameterThatOneProcessUses() throws Exception {
        List<float[]> expected = branching(null);
        for (List<float[]> actual : ThreadedJob.run(4, SequenceStepTest::branching)) {
            ArrayAssert.assertAllClose(actual, expected, TOLERANCE, "weights");
        }
    }

    private static List<float[]> branching(Job job) {
        Block block =
                new GraphBlock(
                                new Shape(3, 4),
                                (call, in) -> {
                                    NDArray x = call.call("scatter", in.head());
                                    x = x.mul(call.value("a"));
                                    if (job == null) {
                                        NDArray own = x.get("2:").mul(call.value("b"));
                                        x = x.get(":2").concat(own);
                                    } else if (job.getProcess() == 1) {
                                        x = x.mul(call.value("b"));
                                    }
                                    return new NDList(call.call("gather", x));
                                })
                        .add("scatter", new SequenceScatter(), 3, 4)
                        .add("gather", new SequenceGather(), 3, 4)
                        .add("a", new Shape(1, 4))
                        .add("b", new Shape(1, 4));
        block.setInitializer(
                (m, shape, type) -> TrainingRun.random(m, shape.size(), shape.getShape()),
                parameter -> true);
        DeviceMesh mesh = DeviceMesh.of(DeviceMesh.DATA, 2, DeviceMesh.TENSOR, 2);
        DefaultTrainingConfig config = config(0.1f, new HalfSquareLoss());
        try (Model model = Model.newInstance("net", Device.cpu());
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(block);
            try (Trainer trainer =
                    job == null
                            ? model.newTrainer(config)
                            : new ParallelTrainer(
                                    model,
                                    config,
                                    ParallelConfig.builder().setMesh(mesh).optJob(job).build())) {
                trainer.initialize(new Shape(4, 3, 4));
                for (int step = 0; step < 2; step++) {
                    TrainingRun.backward(
                            trainer,
                            TrainingRun.random(manager, 1, 4, 3, 4),
                            TrainingRun.random(manager, 2, 4, 3, 4));
                    trainer.step();
                }
            }
            return TrainingRun.weights(block);
        }
    }

    /** A rank drops those elements of its tokens that one rank drops of all. */
    @Test(timeOut = 60_000)
    public void dropoutInTheRegion() {
        for (int axis : new int[] {1, 2}) { // flattened tokens, and sequences
            List<float[]> expected = dropout(new TrainerKind(ParallelMode.TENSOR, 1), axis);
            for (TrainerKind kind :
                    List.of(
                            new TrainerKind(ParallelMode.TENSOR, 2),
                            new TrainerKind(ParallelMode.TENSOR, 3),
                            new TrainerKind(ParallelMode.DATA, 2),
                            TrainerKind.mesh(2, 2),
                            TrainerKind.mesh(2, 3))) {
                List<float[]> actual = dropout(kind, axis);
                ArrayAssert.assertAllClose(actual, expected, TOLERANCE, "" + kind);
            }
        }
    }

    private static List<float[]> dropout(TrainerKind kind, int axis) {
        Block layer =
                sequence(
                        norm(axis),
                        column(true, 9),
                        gelu(),
                        ParallelDropout.builder().optRate(0.3f).optSeed(4).build(),
                        row(true, 6, true),
                        ParallelDropout.builder().optRate(0.4f).optSeed(5).build());
        Block block =
                sequence(
                        linear(6),
                        new SequenceScatter(),
                        sum(map(x -> x), layer),
                        ParallelDropout.builder().optRate(0.2f).optSeed(6).build(),
                        new SequenceGather());
        long[] shape = axis == 1 ? new long[] {13, 6} : new long[] {4, 7, 6};
        return train(kind, block, Loss.l2Loss(), trainer -> null, shape);
    }

    private static List<float[]> train(
            TrainerKind kind,
            Block block,
            Loss loss,
            Function<Trainer, Void> after,
            long... sizes) {
        long[] shape = sizes.length == 0 ? new long[] {4, 7, 6} : sizes;
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            initialize(model, block, shape);
            try (Trainer trainer = kind.open(model, config(0.1f, loss))) {
                trainer.initialize(new Shape(shape));
                steps(trainer, manager, shape);
                after.apply(trainer);
            }
            return TrainingRun.weights(block);
        }
    }

    /** The generator is one for all threads. */
    private static synchronized void initialize(Model model, Block block, long... shape) {
        Engine.getInstance().setRandomSeed(42);
        block.initialize(model.getNDManager(), DataType.FLOAT32, new Shape(shape));
        model.setBlock(block);
    }

    private static void steps(Trainer trainer, NDManager manager, long... shape) {
        for (int step = 0; step < 3; step++) {
            NDArray data = TrainingRun.random(manager, 10 + step, shape);
            TrainingRun.backward(trainer, data, TrainingRun.random(manager, 50 + step, shape));
            trainer.step();
        }
    }

    private static DefaultTrainingConfig config(float rate) {
        return config(rate, Loss.l2Loss());
    }

    private static DefaultTrainingConfig config(float rate, Loss loss) {
        return Configs.of(loss, Configs.sgd(rate));
    }

    /** On a backend that is asynchronous, where products overlap with the scatter of gradients. */
    @Test(timeOut = 120_000)
    public void processesOverTcp() throws Exception {
        List<float[]> expected =
                train(TrainerKind.PLAIN, body(false, true, 2), Loss.l2Loss(), trainer -> null);
        for (List<float[]> actual : ThreadedJob.run(SequenceStepTest::process)) {
            ArrayAssert.assertAllClose(actual, expected, TOLERANCE, "tcp");
        }
    }

    private static List<float[]> process(Job job) {
        Block block = body(true, true, 2);
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            initialize(model, block, 4, 7, 6);
            ParallelConfig config =
                    ParallelConfig.builder()
                            .setMode(ParallelMode.TENSOR)
                            .setRanks(2)
                            .optJob(job)
                            .build();
            try (ParallelTrainer trainer = new ParallelTrainer(model, config(0.1f), config)) {
                trainer.initialize(new Shape(4, 7, 6));
                steps(trainer, manager, 4, 7, 6);
            }
            return TrainingRun.weights(block);
        }
    }
}
