package io.djltp.internal.torch;

import io.djltp.internal.libtorch.LibTorch;

import org.bytedeco.javacpp.BytePointer;
import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

/** The state of libtorch's generator of random numbers on the CPU at some moment. */
@SuppressWarnings("try") // a scope is used by being open
public final class RandomState implements AutoCloseable {

    private final Tensor state;

    private RandomState(Tensor state) {
        this.state = state;
    }

    /**
     * Returns the present state.
     *
     * @return a copy, to be closed by the caller
     */
    public static RandomState save() {
        LibTorch.load(); // may be the first call of all
        try (PointerScope scope = new PointerScope()) {
            Tensor state = torch.getDefaultCPUGenerator().get_state();
            state.retainReference(); // beyond the scope
            return new RandomState(state);
        }
    }

    /**
     * Returns a state that was kept as bytes.
     *
     * @param bytes what {@link #toBytes()} has returned
     * @return the state, to be closed by the caller
     */
    public static RandomState of(byte... bytes) {
        LibTorch.load(); // may be the first call of all
        try (PointerScope scope = new PointerScope()) {
            Tensor state = torch.getDefaultCPUGenerator().get_state(); // of the type and length
            if (state.numel() != bytes.length) {
                throw new IllegalArgumentException(
                        ("The state of a generator has %s bytes, not %s: it is of another"
                                        + " version of libtorch")
                                .formatted(state.numel(), bytes.length));
            }
            new BytePointer(state.data_ptr()).put(bytes);
            state.retainReference(); // beyond the scope
            return new RandomState(state);
        }
    }

    /**
     * Returns the state as bytes.
     *
     * @return the bytes, for the same version of libtorch
     */
    public byte[] toBytes() {
        byte[] bytes = new byte[(int) state.numel()];
        try (PointerScope scope = new PointerScope()) {
            new BytePointer(state.data_ptr()).get(bytes);
        }
        return bytes;
    }

    /**
     * Returns whether no number has been drawn since this state was saved.
     *
     * @return whether the generator is in this state
     */
    public boolean isPresent() {
        try (PointerScope scope = new PointerScope()) {
            return state.equal(torch.getDefaultCPUGenerator().get_state());
        }
    }

    /** Sets the generator back, so that it draws once more what it has drawn since. */
    public void restore() {
        try (PointerScope scope = new PointerScope()) {
            torch.getDefaultCPUGenerator().set_state(state);
        }
    }

    /** Frees the copy. */
    @Override
    public void close() {
        state.close();
    }
}
