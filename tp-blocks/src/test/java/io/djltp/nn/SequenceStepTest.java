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
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MESH_2X3;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;

import io.djltp.collective.CollectiveCounts;
import io.djltp.job.Job;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Configs;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.ThreadedJob;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;

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
        Assert.assertEquals(counts(TENSOR_1, body(true, true, 2)), List.of("none", "none", "none"));
    }

    private static List<String> counts(TrainerKind kind, Block block) {
        List<CollectiveCounts> at = new ArrayList<>();
        train(
                kind,
                block,
                trainer -> at.add(((ParallelTrainer) trainer).getCollectiveCounts()),
                4,
                7,
                6);
        List<String> counts = new ArrayList<>();
        for (int i = at.size() - 3; i < at.size(); i++) { // of the last step
            counts.add(at.get(i).minus(at.get(i - 1)).toString());
        }
        return counts;
    }

    /** Conformance case 24: the replicas of norms and biases stay the same, bit for bit. */
    @Test(timeOut = 60_000)
    public void replicasAreBitEqualAfterTheSum() {
        for (TrainerKind kind : List.of(TENSOR_3, MESH_2X2)) {
            Block block = body(true, true, 2);
            train(kind, block, trainer -> checkReplicas((ParallelTrainer) trainer), 4, 7, 6);
        }
    }

    private static void checkReplicas(ParallelTrainer trainer) {
        for (Parameter parameter : trainer.getModel().getBlock().getParameters().values()) {
            float[] first = value(trainer, 0, parameter);
            for (int rank = 1; rank < trainer.getRanks().size(); rank++) {
                float[] other = value(trainer, rank, parameter);
                if (parameter.getShape().size() == other.length) { // not cut
                    ArrayAssert.assertBitEqual(other, first, parameter.getName());
                }
            }
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
        return process(job == null ? PLAIN : MESH_2X2.in(job), block, "4x3x4");
    }

    /** On a backend that is asynchronous, where products overlap with the scatter of gradients. */
    @Test(timeOut = 120_000)
    public void processesOverTcp() throws Exception {
        List<float[]> expected = process(PLAIN, body(false, true, 2), "4x7x6");
        TrainerKind mesh = TrainerKind.mesh(1, 2);
        for (List<float[]> actual :
                ThreadedJob.run(job -> process(mesh.in(job), body(true, true, 2), "4x7x6"))) {
            ArrayAssert.assertAllClose(actual, expected, TOLERANCE, "tcp");
        }
    }

    private static List<float[]> process(TrainerKind kind, Block block, String shape) {
        block.setInitializer(
                (m, whole, type) -> TrainingRun.random(m, whole.size(), whole.getShape()),
                parameter -> true);
        DefaultTrainingConfig config = Configs.of(new HalfSquareLoss(), Configs.sgd(0.1f));
        return TrainingRun.of(kind, block, config, Network.batches(shape, shape), 2).getWeights();
    }

    /** A rank drops those elements of its tokens that one rank drops of all. */
    @Test(timeOut = 60_000)
    public void dropoutInTheRegion() {
        for (int axis : new int[] {1, 2}) { // flattened tokens, and sequences
            TrainingRun expected = dropout(TENSOR_1, axis);
            for (TrainerKind kind : List.of(TENSOR_2, TENSOR_3, DATA_2, MESH_2X2, MESH_2X3)) {
                dropout(kind, axis).assertSame(expected, TOLERANCE);
            }
        }
    }

    private static TrainingRun dropout(TrainerKind kind, int axis) {
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
        return train(kind, block, trainer -> {}, shape);
    }

    /** Trains, and shows the trainer before a step, between its passes and after it. */
    private static TrainingRun train(
            TrainerKind kind, Block block, Consumer<Trainer> shown, long... shape) {
        return TrainingRun.of(
                kind,
                block,
                Loss.l2Loss(),
                new Shape(shape),
                (trainer, manager, numbers) -> {
                    for (int step = 0; step < 3; step++) {
                        NDList labels = new NDList(TrainingRun.random(manager, 9 + step, shape));
                        shown.accept(trainer);
                        NDList data = new NDList(TrainingRun.random(manager, step, shape));
                        numbers.add(
                                TrainingRun.backward(
                                        trainer, data, labels, output -> shown.accept(trainer)));
                        shown.accept(trainer);
                        trainer.step();
                        shown.accept(trainer);
                    }
                });
    }
}
