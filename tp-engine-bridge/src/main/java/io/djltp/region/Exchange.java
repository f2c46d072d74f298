package io.djltp.region;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

import java.util.Arrays;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Supplier;

/**
 * An exchange of rows: each rank sends some of its rows to every rank, and receives some from each.
 * Backward, the gradients of the rows go back where the rows came from: an all-to-all with the
 * lengths swapped.
 *
 * <p>The numbers of rows that come and go differ, and so does the shape of a gradient before and
 * after it. The node of the graph that has the hook therefore has the larger number of rows; what
 * one of the two directions does not need of it is cut off.
 *
 * <p>An instance serves one call. It lives as long as the manager of the call's input: until the
 * backward pass is done.
 */
@SuppressWarnings("try") // a scope is used by being open
final class Exchange implements AutoCloseable {

    private final Supplier<Communicator> group;
    private final long[] sent;
    private final long[] received;
    private final GradientHook hook;

    /**
     * Prepares a call.
     *
     * @param group returns the rank's end of the group, for a call
     * @param sent the number of rows that go to each rank
     * @param received the number of rows that come from each rank
     * @param failure where the first exception of a hook is kept
     */
    Exchange(
            Supplier<Communicator> group,
            long[] sent,
            long[] received,
            AtomicReference<Throwable> failure) {
        this.group = group;
        this.sent = sent.clone();
        this.received = received.clone();
        // the gradient of a slice: zeros with a copy in them
        hook = GradientHook.changing(this::sendBack, true, failure);
    }

    /**
     * Exchanges rows.
     *
     * @param input this rank's rows, those for rank 0 first, [sum of sent, ...]
     * @return the rows that arrive, those of rank 0 first, [sum of received, ...]
     */
    NDArray forward(NDArray input) {
        input.getManager().attachInternal(UUID.randomUUID().toString(), this);
        long going = check(input.getShape());
        long coming = Arrays.stream(received).sum();
        return TorchScope.array(
                input.getManager(),
                () -> {
                    Tensor tensor = TensorView.of(input).tensor();
                    long[] padding = new long[2 * (int) tensor.dim()]; // from the last axis back
                    padding[padding.length - 1] = Math.max(0, coming - going);
                    Tensor place =
                            torch.constant_pad_nd(tensor, padding, new Scalar(0)).contiguous();
                    if (place.requires_grad()) {
                        place.register_hook(hook);
                    }
                    Tensor output = place.narrow(0, 0, coming);
                    try (TorchScope guard = TorchScope.withoutGraph()) {
                        exchange(tensor.contiguous(), output.detach(), sent, received);
                    }
                    return output;
                });
    }

    private void sendBack(Tensor gradient) {
        Tensor arrived = gradient.narrow(0, 0, Arrays.stream(received).sum()).clone();
        Tensor own = gradient.narrow(0, 0, Arrays.stream(sent).sum());
        exchange(arrived, own, received, sent);
    }

    private void exchange(Tensor from, Tensor to, long[] going, long[] coming) {
        long size = 1; // of a row; of none at all the elements do not tell
        for (int i = 1; i < from.dim(); i++) {
            size *= from.size(i);
        }
        group.get()
                .allToAll(
                        TensorView.of(from),
                        TensorView.of(to),
                        elements(going, size),
                        elements(coming, size))
                .await();
    }

    private static long[] elements(long[] rows, long size) {
        return Arrays.stream(rows).map(each -> each * size).toArray();
    }

    /** Returns how many rows go. */
    private long check(Shape shape) {
        long going = Arrays.stream(sent).sum();
        if (shape.dimension() == 0 || shape.get(0) != going) {
            throw new IllegalArgumentException(
                    ("Axis 0 of %s must have length %s for the rows %s that go to the ranks")
                            .formatted(shape, going, Arrays.toString(sent)));
        }
        return going;
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        hook.close();
    }
}
