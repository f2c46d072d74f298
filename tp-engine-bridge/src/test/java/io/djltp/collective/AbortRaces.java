package io.djltp.collective;

import ai.djl.ndarray.types.DataType;

import io.djltp.internal.collective.local.LocalCommunicator;
import io.djltp.internal.torch.TensorView;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;

import java.time.Duration;
import java.util.List;

/**
 * Aborts many groups in the middle of their operations; each rank frees its tensors as soon as it
 * gets the failure. Crashes if another rank still reads them then.
 */
@SuppressWarnings("try") // a scope is used by being open
final class AbortRaces {

    private AbortRaces() {}

    public static void main(String[] args) throws Exception {
        int groups = Integer.parseInt(args[0]);
        for (int i = 0; i < groups; i++) {
            List<Communicator> group = LocalCommunicator.create(4, Duration.ofSeconds(20));
            int delay = i * 7919 % 3_000_000;
            Thread breaker =
                    new Thread(
                            () -> {
                                long end = System.nanoTime() + delay;
                                while (System.nanoTime() < end) {
                                    Thread.onSpinWait();
                                }
                                group.get(0).abort(new IllegalStateException("enough"));
                            });
            breaker.start();
            Throwable[] outcomes =
                    RankThreads.outcomes(
                            group,
                            (communicator, manager) -> {
                                while (true) {
                                    try (PointerScope scope = new PointerScope()) {
                                        Tensor tensor =
                                                TestTensors.full(DataType.FLOAT32, 1, 70_000);
                                        communicator
                                                .allReduce(TensorView.of(tensor), ReduceOp.SUM)
                                                .await();
                                    }
                                }
                            });
            breaker.join();
            for (Throwable outcome : outcomes) {
                if (!(outcome instanceof CollectiveException)
                        || !(outcome.getCause() instanceof IllegalStateException)) {
                    throw new AssertionError(outcome);
                }
            }
        }
        System.out.println("done");
    }
}
