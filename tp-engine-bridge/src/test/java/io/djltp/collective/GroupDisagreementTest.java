package io.djltp.collective;

import ai.djl.ndarray.types.DataType;

import io.djltp.internal.collective.AbstractCommunicator;
import io.djltp.internal.collective.CollectiveCall;
import io.djltp.internal.torch.TensorView;
import io.djltp.testing.Refusals;

import org.bytedeco.pytorch.Tensor;
import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.time.Duration;
import java.util.Arrays;
import java.util.List;

/** Ranks that do not call the same get an error that says what each of them called. */
public class GroupDisagreementTest {

    private static final String REMEDY =
            ". Do all ranks have as many batches, of the same size, as many epochs, and the same"
                    + " settings?";

    private static final DataType FLOATS = DataType.FLOAT32;

    private static List<Communicator> group(int size) {
        return TestBackend.current().create(size, Duration.ofMinutes(10));
    }

    private static void skipOnNccl(String why) {
        if (TestBackend.current() == TestBackend.NCCL) {
            throw new SkipException("NCCL " + why);
        }
    }

    private static Object[] row(
            String what, RankThreads.Body most, String first, RankThreads.Body last, String third) {
        return new Object[] {what, most, first, last, third};
    }

    /** Ranks 0 and 1 sum up 12 numbers, and rank 2 does something else. */
    private static Object[] ofSum(String what, RankThreads.Body last, String third) {
        String first = "all-reduce #1 (SUM) of (12) float32";
        return row(what, sum(ReduceOp.SUM, FLOATS, 12), first, last, third);
    }

    private static RankThreads.Body sum(ReduceOp op, DataType type, long... shape) {
        return (communicator, manager) -> reduce(communicator, op, type, shape);
    }

    /**
     * Returns what differs, what ranks 0 and 1 call and how it is named, and the same of rank 2.
     */
    @DataProvider
    public static Object[][] disagreements() {
        RankThreads.Body scatter = (c, m) -> scatter(c, 4, 4, 4);
        String ofScatter = "reduce-scatter #1 (SUM) of (12) float32 in shares ";
        return new Object[][] {
            ofSum(
                    "operation",
                    (c, m) -> gather(c, 4, 4, 4),
                    "all-gather #1 of (4) float32 in shares [4, 4, 4]"),
            ofSum("length", sum(ReduceOp.SUM, FLOATS, 11), "all-reduce #1 (SUM) of (11) float32"),
            ofSum(
                    "shape",
                    sum(ReduceOp.SUM, FLOATS, 3, 4),
                    "all-reduce #1 (SUM) of (3, 4) float32"),
            ofSum(
                    "data type",
                    sum(ReduceOp.SUM, DataType.BFLOAT16, 12),
                    "all-reduce #1 (SUM) of (12) bfloat16"),
            ofSum(
                    "reduction",
                    sum(ReduceOp.MAX, FLOATS, 12),
                    "all-reduce #1 (MAX) of (12) float32"),
            ofSum("barrier", (c, m) -> c.barrier(), "barrier #1"),
            row(
                    "root",
                    (c, m) -> broadcast(c, 0),
                    "broadcast #1 from rank 0 of (5) float32",
                    (c, m) -> broadcast(c, 2),
                    "broadcast #1 from rank 2 of (5) float32"),
            row(
                    "gathered shares",
                    (c, m) -> gather(c, 4, 5, 3),
                    "all-gather #1 of (4) float32 in shares [4, 5, 3]",
                    (c, m) -> gather(c, 5, 4, 3),
                    "all-gather #1 of (3) float32 in shares [5, 4, 3]"),
            row(
                    "scattered shares",
                    scatter,
                    ofScatter + "[4, 4, 4]",
                    (c, m) -> scatter(c, 3, 5, 4),
                    ofScatter + "[3, 5, 4]")
        };
    }

    @Test(dataProvider = "disagreements", timeOut = 60_000)
    public void everyRankIsToldWhatTheOthersCalled(
            String what, RankThreads.Body most, String first, RankThreads.Body last, String third)
            throws Exception {
        if (what.equals("shape")) {
            skipOnNccl("sees counts, not shapes");
        }
        CollectiveException[] failures =
                RankThreads.failures(
                        group(3), (c, m) -> (c.getRank() == 2 ? last : most).run(c, m));
        for (int rank = 0; rank < 3; rank++) {
            String message = failures[rank].getMessage();
            Assert.assertTrue(
                    message.startsWith("rank " + rank + " of 3: the ranks called different"),
                    message);
            Assert.assertTrue(message.contains("rank 0 " + first + "; rank 1 "), message);
            Assert.assertTrue(message.endsWith("; rank 2 " + third + REMEDY), message);
        }
    }

    private static void assertMessages(CollectiveException[] failures, String... parts) {
        for (CollectiveException failure : failures) {
            Refusals.assertContains(failure.getMessage(), parts);
        }
    }

    /** The third call differs: the message says which call it was. */
    @Test(timeOut = 60_000)
    public void theCallIsNumbered() throws Exception {
        CollectiveException[] failures =
                RankThreads.failures(
                        group(2),
                        (communicator, manager) -> {
                            reduce(communicator, ReduceOp.SUM, DataType.INT64, 3);
                            communicator.barrier();
                            int length = 1 + communicator.getRank();
                            reduce(communicator, ReduceOp.SUM, DataType.INT64, length);
                        });
        assertMessages(
                failures,
                "rank 0 all-reduce #3 (SUM) of (1) int64; rank 1 all-reduce #3 (SUM) of (2) int64"
                        + REMEDY);
    }

    /** One rank compares numbers in a step, and another one as many when its trainer closes. */
    @Test(timeOut = 60_000)
    public void theCloseOfATrainerIsNoStep() throws Exception {
        skipOnNccl("completes calls of equal counts, whoever issued them");
        CollectiveException[] failures =
                RankThreads.failures(
                        group(2),
                        (communicator, manager) -> {
                            boolean closes = communicator.getRank() == 1;
                            communicator.setIssuer(
                                    closes ? CollectiveCall.CLOSE + ", comparing" : "a step");
                            gather(communicator, 2, 2);
                        });
        assertMessages(
                failures,
                "rank 1 all-gather #1 of (2) float32 in shares [2, 2] issued by the close of the"
                        + " trainer, comparing",
                " One in the close of the trainer has ");
    }

    /** One rank trains other parameters, and calls the same, in a part of the group. */
    @Test(timeOut = 60_000)
    public void whatRanksSayWithTheirCallsIsCompared() throws Exception {
        skipOnNccl("completes calls of equal counts, whatever was said");
        CollectiveException[] failures =
                RankThreads.failures(
                        group(2),
                        (communicator, manager) -> {
                            AbstractCommunicator rank = AbstractCommunicator.of(communicator);
                            rank.setAgreement("1 of 2 parameters frozen");
                            Communicator part = communicator.split(0, communicator.getRank());
                            reduce(part, ReduceOp.SUM, FLOATS, 3); // the same is said
                            rank.setAgreement(
                                    rank.getRank() == 1 ? "2 of 2 parameters frozen" : "");
                            reduce(part, ReduceOp.SUM, FLOATS, 3);
                        });
        assertMessages(
                failures,
                "; rank 1 all-reduce #2 (SUM) of (3) ",
                ", with 2 of 2 parameters frozen.",
                " Freeze and thaw the same parameters on all processes, before the same step.");
    }

    /** Of an all-to-all the shares of two ranks must fit each other. */
    @Test(timeOut = 60_000)
    public void sharesThatDoNotFitEachOtherEndTheGroup() throws Exception {
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group(2),
                        (group, manager) -> {
                            // rank 0 sends 3 elements, rank 1 expects 2
                            boolean first = group.getRank() == 0;
                            long[] sent = first ? new long[] {0, 3} : new long[2];
                            long[] received = first ? new long[2] : new long[] {2, 0};
                            TensorView in = TensorView.of(TestTensors.zeros(FLOATS, first ? 3 : 0));
                            TensorView out =
                                    TensorView.of(TestTensors.zeros(FLOATS, first ? 0 : 2));
                            group.allToAll(in, out, sent, received).await();
                        });
        Assert.assertTrue(outcomes[1] instanceof CollectiveException, "" + outcomes[1]);
        assertMessages(
                new CollectiveException[] {(CollectiveException) outcomes[1]},
                "rank 0 sends",
                "to rank 1, which expects");
    }

    private static void reduce(Communicator group, ReduceOp op, DataType type, long... shape) {
        group.allReduce(TensorView.of(TestTensors.zeros(type, shape)), op).await();
    }

    private static void broadcast(Communicator group, int root) {
        group.broadcast(TensorView.of(TestTensors.zeros(FLOATS, 5)), root).await();
    }

    private static void gather(Communicator group, long... shares) {
        Tensor input = TestTensors.zeros(FLOATS, shares[group.getRank()]);
        Tensor output = TestTensors.zeros(FLOATS, Arrays.stream(shares).sum());
        group.allGather(TensorView.of(input), TensorView.of(output), shares).await();
    }

    private static void scatter(Communicator group, long... shares) {
        Tensor input = TestTensors.zeros(FLOATS, 12);
        Tensor output = TestTensors.zeros(FLOATS, shares[group.getRank()]);
        group.reduceScatter(TensorView.of(input), TensorView.of(output), shares, ReduceOp.SUM)
                .await();
    }
}
