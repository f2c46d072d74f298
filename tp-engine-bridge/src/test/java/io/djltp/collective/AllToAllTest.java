package io.djltp.collective;

import ai.djl.ndarray.types.DataType;

import io.djltp.internal.torch.TensorView;

import org.bytedeco.pytorch.Tensor;
import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;

/** All-to-all is the transposition of the shares: rank r gets what every rank has for r. */
public class AllToAllTest {

    /** Returns every type with several numbers of ranks. */
    @DataProvider
    public static Object[][] typesAndSizes() {
        return Arrays.stream(TestTensors.TYPES)
                .flatMap(
                        type ->
                                Arrays.stream(new int[] {1, 2, 3, 4, 8})
                                        .mapToObj(size -> new Object[] {type, size}))
                .toArray(Object[][]::new);
    }

    @Test(dataProvider = "typesAndSizes", timeOut = 60_000)
    public void everyRankGetsItsShareOfEveryRank(DataType type, int size) throws Exception {
        RankThreads.run(
                size,
                (group, manager) -> {
                    int rank = group.getRank();
                    long[] sent = new long[size];
                    long[] received = new long[size];
                    for (int i = 0; i < size; i++) {
                        sent[i] = share(rank, i);
                        received[i] = share(i, rank);
                    }
                    Tensor input = TestTensors.zeros(type, Arrays.stream(sent).sum());
                    Tensor output = TestTensors.zeros(type, Arrays.stream(received).sum());
                    double[] values = fill(input, sent, i -> 10.0 * rank + i);
                    Assert.assertEquals(TestTensors.doubles(input), values);
                    group.allToAll(TensorView.of(input), TensorView.of(output), sent, received)
                            .await();
                    Tensor expected = TestTensors.zeros(type, Arrays.stream(received).sum());
                    fill(expected, received, i -> 10.0 * i + rank);
                    TestTensors.assertSame(output, expected, type + " on rank " + rank);
                    TestTensors.assertSame(input, input, "input");
                    Assert.assertEquals(TestTensors.doubles(input), values, "the input is kept");
                });
    }

    @Test(timeOut = 60_000)
    public void sharesThatDoNotFitEachOtherEndTheGroup() throws Exception {
        Throwable[] outcomes =
                RankThreads.outcomes(
                        TestBackend.current().create(2, RankThreads.TIMEOUT),
                        (group, manager) -> {
                            // rank 0 sends 3 elements, rank 1 expects 2
                            long[] sent = group.getRank() == 0 ? new long[] {0, 3} : new long[2];
                            long[] received =
                                    group.getRank() == 0 ? new long[2] : new long[] {2, 0};
                            group.allToAll(zeros(sent), zeros(received), sent, received).await();
                        });
        Assert.assertTrue(outcomes[1] instanceof CollectiveException, "" + outcomes[1]);
        String message = outcomes[1].getMessage();
        Assert.assertTrue(message.contains("rank 0 sends"), message);
        Assert.assertTrue(message.contains("to rank 1, which expects"), message);
    }

    @Test(timeOut = 60_000)
    public void sharesThatDoNotFitTheTensorsAreRefused() throws Exception {
        RankThreads.run(
                2,
                (group, manager) -> {
                    TensorView four = TensorView.of(TestTensors.zeros(DataType.FLOAT32, 4));
                    IllegalArgumentException refusal =
                            Assert.expectThrows(
                                    IllegalArgumentException.class,
                                    () ->
                                            group.allToAll(
                                                    four,
                                                    four,
                                                    new long[] {2, 2},
                                                    new long[] {2, 3}));
                    Assert.assertEquals(
                            refusal.getMessage(),
                            "all-to-all: the parts received [2, 3] do not fit 2 ranks and (4)"
                                    + " float32");
                    group.barrier();
                });
    }

    private static TensorView zeros(long[] shares) {
        return TensorView.of(TestTensors.zeros(DataType.FLOAT32, Arrays.stream(shares).sum()));
    }

    /** Uneven, and nothing from some ranks to some others. */
    private static long share(int from, int to) {
        return (from * 3 + to * 5) % 4 == 1 ? 0 : 1 + (from + 2 * to) % 3;
    }

    private static double[] fill(
            Tensor tensor, long[] shares, java.util.function.IntToDoubleFunction value) {
        double[] values = new double[(int) tensor.numel()];
        int next = 0;
        for (int i = 0; i < shares.length; i++) {
            if (shares[i] > 0) {
                try (org.bytedeco.pytorch.Scalar scalar =
                        new org.bytedeco.pytorch.Scalar(value.applyAsDouble(i))) {
                    tensor.narrow(0, next, shares[i]).fill_(scalar);
                }
                Arrays.fill(values, next, next + (int) shares[i], value.applyAsDouble(i));
                next += (int) shares[i];
            }
        }
        return values;
    }
}
