package io.djltp.collective;

import ai.djl.ndarray.types.DataType;

import io.djltp.internal.torch.TensorView;

import org.bytedeco.pytorch.Tensor;
import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.time.Duration;
import java.util.List;

/** Ranks that do not call the same get an error that says what each of them called. */
public class GroupDisagreementTest {

    private static final String REMEDY =
            ". Do all ranks have as many batches, of the same size, as many epochs, and the same"
                    + " settings?";

    private static final long[] SHARES = {4, 4, 4};

    /** Returns what differs, what ranks 0 and 1 call, what rank 2 calls, and how both are named. */
    @DataProvider
    public static Object[][] disagreements() {
        RankThreads.Body allReduce = (c, m) -> reduce(c, ReduceOp.SUM, DataType.FLOAT32, 12);
        RankThreads.Body reduceScatter = (c, m) -> scatter(c, SHARES);
        return new Object[][] {
            {
                "operation",
                allReduce,
                (RankThreads.Body) (c, m) -> gather(c, SHARES),
                "all-reduce #1 (SUM) of (12) float32",
                "all-gather #1 of (4) float32 in shares [4, 4, 4]"
            },
            {
                "length",
                allReduce,
                (RankThreads.Body) (c, m) -> reduce(c, ReduceOp.SUM, DataType.FLOAT32, 11),
                "all-reduce #1 (SUM) of (12) float32",
                "all-reduce #1 (SUM) of (11) float32"
            },
            {
                "shape",
                allReduce,
                (RankThreads.Body) (c, m) -> reduce(c, ReduceOp.SUM, DataType.FLOAT32, 3, 4),
                "all-reduce #1 (SUM) of (12) float32",
                "all-reduce #1 (SUM) of (3, 4) float32"
            },
            {
                "data type",
                allReduce,
                (RankThreads.Body) (c, m) -> reduce(c, ReduceOp.SUM, DataType.BFLOAT16, 12),
                "all-reduce #1 (SUM) of (12) float32",
                "all-reduce #1 (SUM) of (12) bfloat16"
            },
            {
                "reduction",
                allReduce,
                (RankThreads.Body) (c, m) -> reduce(c, ReduceOp.MAX, DataType.FLOAT32, 12),
                "all-reduce #1 (SUM) of (12) float32",
                "all-reduce #1 (MAX) of (12) float32"
            },
            {
                "barrier",
                allReduce,
                (RankThreads.Body) (c, m) -> c.barrier(),
                "all-reduce #1 (SUM) of (12) float32",
                "barrier #1"
            },
            {
                "root",
                (RankThreads.Body) (c, m) -> broadcast(c, 0),
                (RankThreads.Body) (c, m) -> broadcast(c, 2),
                "broadcast #1 from rank 0 of (5) float32",
                "broadcast #1 from rank 2 of (5) float32"
            },
            {
                "gathered shares",
                (RankThreads.Body) (c, m) -> gather(c, new long[] {4, 5, 3}),
                (RankThreads.Body) (c, m) -> gather(c, new long[] {5, 4, 3}),
                "all-gather #1 of (4) float32 in shares [4, 5, 3]",
                "all-gather #1 of (3) float32 in shares [5, 4, 3]"
            },
            {
                "scattered shares",
                reduceScatter,
                (RankThreads.Body) (c, m) -> scatter(c, new long[] {3, 5, 4}),
                "reduce-scatter #1 (SUM) of (12) float32 in shares [4, 4, 4]",
                "reduce-scatter #1 (SUM) of (12) float32 in shares [3, 5, 4]"
            },
        };
    }

    @Test(dataProvider = "disagreements", timeOut = 60_000)
    public void everyRankIsToldWhatTheOthersCalled(
            String what, RankThreads.Body most, RankThreads.Body last, String first, String third)
            throws Exception {
        if (what.equals("shape") && TestBackend.current() == TestBackend.NCCL) {
            throw new SkipException("NCCL sees counts, not shapes");
        }
        List<Communicator> group = TestBackend.current().create(3, Duration.ofMinutes(10));
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
                        (communicator, manager) ->
                                (communicator.getRank() == 2 ? last : most)
                                        .run(communicator, manager));
        for (int rank = 0; rank < 3; rank++) {
            Assert.assertTrue(outcomes[rank] instanceof CollectiveException, "" + outcomes[rank]);
            String message = outcomes[rank].getMessage();
            Assert.assertTrue(
                    message.startsWith("rank " + rank + " of 3: the ranks called different"),
                    message);
            Assert.assertTrue(message.contains("rank 0 " + first + "; rank 1 "), message);
            Assert.assertTrue(message.endsWith("; rank 2 " + third + REMEDY), message);
        }
    }

    /** The third call differs: the message says which call it was. */
    @Test(timeOut = 60_000)
    public void theCallIsNumbered() throws Exception {
        List<Communicator> group = TestBackend.current().create(2, Duration.ofMinutes(10));
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
                        (communicator, manager) -> {
                            reduce(communicator, ReduceOp.SUM, DataType.INT64, 3);
                            communicator.barrier();
                            reduce(
                                    communicator,
                                    ReduceOp.SUM,
                                    DataType.INT64,
                                    1 + communicator.getRank());
                        });
        for (Throwable outcome : outcomes) {
            Assert.assertTrue(
                    outcome.getMessage()
                            .endsWith(
                                    "rank 0 all-reduce #3 (SUM) of (1) int64;"
                                            + " rank 1 all-reduce #3 (SUM) of (2) int64"
                                            + REMEDY),
                    outcome.getMessage());
        }
    }

    /** One rank compares numbers in a step, and another one as many when its trainer closes. */
    @Test(timeOut = 60_000)
    public void theCloseOfATrainerIsNoStep() throws Exception {
        if (TestBackend.current() == TestBackend.NCCL) {
            throw new SkipException("NCCL completes calls of equal counts, whoever issued them");
        }
        List<Communicator> group = TestBackend.current().create(2, Duration.ofMinutes(10));
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
                        (communicator, manager) -> {
                            boolean closes = communicator.getRank() == 1;
                            communicator.setIssuer(
                                    closes ? CollectiveCall.CLOSE + ", comparing" : "a step");
                            gather(communicator, new long[] {2, 2});
                        });
        for (Throwable outcome : outcomes) {
            Assert.assertTrue(outcome instanceof CollectiveException, "" + outcome);
            String message = outcome.getMessage();
            Assert.assertTrue(
                    message.contains(
                            "rank 1 all-gather #1 of (2) float32 in shares [2, 2] issued by the"
                                    + " close of the trainer, comparing"),
                    message);
            Assert.assertTrue(message.contains(" One in the close of the trainer has "), message);
        }
    }

    /** One rank trains other parameters, and calls the same, in a part of the group. */
    @Test(timeOut = 60_000)
    public void whatRanksSayWithTheirCallsIsCompared() throws Exception {
        if (TestBackend.current() == TestBackend.NCCL) {
            throw new SkipException("NCCL completes calls of equal counts, whatever was said");
        }
        List<Communicator> group = TestBackend.current().create(2, Duration.ofMinutes(10));
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
                        (communicator, manager) -> {
                            AbstractCommunicator.of(communicator)
                                    .setAgreement("1 of 2 parameters frozen");
                            Communicator part = communicator.split(0, communicator.getRank());
                            reduce(part, ReduceOp.SUM, DataType.FLOAT32, 3); // the same is said
                            AbstractCommunicator.of(communicator)
                                    .setAgreement(
                                            communicator.getRank() == 1
                                                    ? "2 of 2 parameters frozen"
                                                    : "");
                            reduce(part, ReduceOp.SUM, DataType.FLOAT32, 3);
                        });
        for (Throwable outcome : outcomes) {
            Assert.assertTrue(outcome instanceof CollectiveException, "" + outcome);
            String message = outcome.getMessage();
            Assert.assertTrue(message.contains("; rank 1 all-reduce #2 (SUM) of (3) "), message);
            Assert.assertTrue(message.contains(", with 2 of 2 parameters frozen."), message);
            Assert.assertTrue(
                    message.endsWith(
                            " Freeze and thaw the same parameters on all processes, before the"
                                    + " same step."),
                    message);
        }
    }

    private static void reduce(Communicator group, ReduceOp op, DataType type, long... shape) {
        group.allReduce(TensorView.of(TestTensors.zeros(type, shape)), op).await();
    }

    private static void broadcast(Communicator group, int root) {
        group.broadcast(TensorView.of(TestTensors.zeros(DataType.FLOAT32, 5)), root).await();
    }

    private static void gather(Communicator group, long[] shares) {
        long sum = java.util.Arrays.stream(shares).sum();
        Tensor input = TestTensors.zeros(DataType.FLOAT32, shares[group.getRank()]);
        Tensor output = TestTensors.zeros(DataType.FLOAT32, sum);
        group.allGather(TensorView.of(input), TensorView.of(output), shares).await();
    }

    private static void scatter(Communicator group, long[] shares) {
        Tensor input = TestTensors.zeros(DataType.FLOAT32, 12);
        Tensor output = TestTensors.zeros(DataType.FLOAT32, shares[group.getRank()]);
        group.reduceScatter(TensorView.of(input), TensorView.of(output), shares, ReduceOp.SUM)
                .await();
    }
}
