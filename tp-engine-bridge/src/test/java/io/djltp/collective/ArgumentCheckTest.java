package io.djltp.collective;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.internal.collective.local.LocalCommunicator;
import io.djltp.internal.torch.TensorView;
import io.djltp.testing.Refusals;

import org.testng.annotations.Test;

import java.time.Duration;

/** What a rank can see alone to be wrong is refused at once, and says what was given. */
public class ArgumentCheckTest {

    @Test(timeOut = 60_000)
    public void typesThatCannotBeReducedAreRefused() throws Exception {
        RankThreads.run(
                2,
                (communicator, manager) -> {
                    for (DataType type : new DataType[] {DataType.INT8, DataType.BOOLEAN}) {
                        TensorView tensor = TensorView.of(manager.zeros(new Shape(2, 3), type));
                        String name = "(2, 3) " + type.name().toLowerCase();
                        Refusals.throwsArgument(
                                () -> communicator.allReduce(tensor, ReduceOp.SUM),
                                "all-reduce does not take " + name,
                                "only the types [float32, float64, float16");
                        Refusals.throwsArgument(
                                () -> communicator.broadcast(tensor, 0),
                                "broadcast does not take " + name);
                    }
                    communicator.barrier(); // the group is as good as before
                });
    }

    @Test(timeOut = 60_000)
    public void tensorsWithGapsAreRefused() throws Exception {
        RankThreads.run(
                2,
                (communicator, manager) -> {
                    TensorView gaps = TensorView.of(manager.zeros(new Shape(2, 3)).transpose());
                    TensorView whole = TensorView.of(manager.zeros(new Shape(12)));
                    TensorView share = TensorView.of(manager.zeros(new Shape(6)));
                    TensorView half = TensorView.of(manager.zeros(new Shape(2, 6)).transpose());
                    long[] shares = {6, 6};
                    String text =
                            " needs a contiguous tensor, but this one of (3, 2) float32 is not";
                    Refusals.throwsArgument(
                            () -> communicator.allReduce(gaps, ReduceOp.SUM), "all-reduce" + text);
                    Refusals.throwsArgument(
                            () -> communicator.broadcast(gaps, 1), "broadcast" + text);
                    Refusals.throwsArgument(
                            () -> communicator.allGather(gaps, whole, shares), "all-gather" + text);
                    Refusals.throwsArgument(
                            () -> communicator.allGather(share, half, shares),
                            "all-gather needs a contiguous",
                            "(6, 2)");
                    Refusals.throwsArgument(
                            () -> communicator.reduceScatter(whole, gaps, shares, ReduceOp.SUM),
                            "reduce-scatter" + text);
                    Refusals.throwsArgument(
                            () -> communicator.reduceScatter(half, share, shares, ReduceOp.SUM),
                            "reduce-scatter needs a contiguous",
                            "(6, 2)");
                    communicator.barrier();
                });
    }

    @Test(timeOut = 60_000)
    public void sharesThatDoNotFitAreRefused() throws Exception {
        RankThreads.run(
                2,
                (communicator, manager) -> {
                    TensorView four = TensorView.of(manager.zeros(new Shape(4)));
                    TensorView eight = TensorView.of(manager.zeros(new Shape(2, 4)));
                    long[][] wrong = {{4}, {4, 4, 0}, {3, 5, 0}, {5, 3}, {4, 5}, {5, 4}, {12, -4}};
                    for (long[] shares : wrong) {
                        int rank = communicator.getRank();
                        Refusals.throwsArgument(
                                () -> communicator.allGather(four, eight, shares),
                                "all-gather: the shares " + java.util.Arrays.toString(shares),
                                "do not fit 2 ranks, (4) float32 as the share of rank " + rank,
                                "and (2, 4) float32 as the whole");
                        Refusals.throwsArgument(
                                () -> communicator.reduceScatter(eight, four, shares, ReduceOp.SUM),
                                "reduce-scatter: the shares " + java.util.Arrays.toString(shares),
                                "do not fit 2 ranks, (4) float32 as the share of rank " + rank);
                    }
                    communicator.barrier();
                });
    }

    @Test(timeOut = 60_000)
    public void partsThatDoNotFitTheTensorsAreRefused() throws Exception {
        RankThreads.run(
                2,
                (group, manager) -> {
                    TensorView four = TensorView.of(manager.zeros(new Shape(4)));
                    long[] even = {2, 2};
                    Refusals.throwsArgument(
                            () -> group.allToAll(four, four, even, new long[] {2, 3}),
                            "all-to-all: the parts received [2, 3] do not fit 2 ranks and (4)"
                                    + " float32");
                    group.barrier();
                });
    }

    @Test(timeOut = 60_000)
    public void twoTypesInOneOperationAreRefused() throws Exception {
        RankThreads.run(
                2,
                (communicator, manager) -> {
                    NDArray four = manager.zeros(new Shape(4));
                    NDArray eight = manager.zeros(new Shape(8), DataType.FLOAT64);
                    Refusals.throwsArgument(
                            () ->
                                    communicator.allGather(
                                            TensorView.of(four),
                                            TensorView.of(eight),
                                            new long[] {4, 4}),
                            "all-gather of (4) float32 and (8) float64: the data types differ");
                    communicator.barrier();
                });
    }

    @Test(timeOut = 60_000)
    public void rootsOutsideTheGroupAreRefused() throws Exception {
        RankThreads.run(
                3,
                (communicator, manager) -> {
                    TensorView tensor = TensorView.of(manager.zeros(new Shape(4)));
                    for (int root : new int[] {-1, 3}) {
                        Refusals.throwsArgument(
                                () -> communicator.broadcast(tensor, root),
                                "The root of a broadcast must be a rank from 0 to 2, not " + root);
                    }
                    communicator.barrier();
                });
    }

    @Test
    public void impossibleGroupsAreRefused() {
        Refusals.throwsArgument(() -> LocalCommunicator.create(0), "1 rank or more, not 0");
        Refusals.throwsArgument(
                () -> LocalCommunicator.create(2, Duration.ZERO),
                "The time-out must be positive, not PT0S");
        Refusals.throwsArgument(
                () -> LocalCommunicator.create(2, Duration.ofSeconds(-1)),
                "The time-out must be positive, not PT-1S");
    }
}
