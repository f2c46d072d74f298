package io.djltp.internal.torch;

import io.djltp.internal.Errors;
import io.djltp.internal.libtorch.LibTorch;

import org.bytedeco.javacpp.BytePointer;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.DispatchKey;

/**
 * Who draws random numbers of libtorch. Its CPU generator is one for the process: what ranks draw
 * from it at the same time depends on which of them comes first, so that a rank must not where all
 * of them compute the same.
 *
 * <p>Libtorch has a set of operations that must not draw, those under a {@code vmap}: there every
 * random operation throws, on any device, and all others do what they always do. It is a flag of
 * the thread; what other threads draw, to load data for instance, is theirs.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class RandomDraws {

    /** What the message of libtorch's exception has. */
    private static final String REFUSAL = "random operations inside of vmap";

    private RandomDraws() {}

    /**
     * Sets whether random operations of libtorch throw in the calling thread. Costs less than a
     * microsecond, and operations that are not random nothing.
     *
     * @param refused whether they throw
     */
    public static void setRefused(boolean refused) {
        LibTorch.load(); // before the first class of the preset
        torch.tls_set_dispatch_key_included(DispatchKey.VmapMode, refused);
    }

    /**
     * Returns whether random operations of libtorch throw in the calling thread.
     *
     * @return whether they throw
     */
    public static boolean isRefused() {
        LibTorch.load(); // before the first class of the preset
        return torch.tls_is_dispatch_key_included(DispatchKey.VmapMode);
    }

    /**
     * Returns whether an exception comes from a random operation that was refused.
     *
     * @param thrown the exception
     * @return whether it, or what caused it, is libtorch's refusal
     */
    public static boolean isRefusal(Throwable thrown) {
        for (Throwable t = thrown; t != null; t = t.getCause()) {
            if (t.getMessage() != null && t.getMessage().contains(REFUSAL)) {
                return true;
            }
        }
        return false;
    }

    /**
     * Returns a number that follows from the state of the process's CPU generator, without a draw:
     * the same after the same seed and the same draws.
     *
     * @return the number
     */
    public static long fingerprint() {
        long number = 0;
        for (byte each : getState()) {
            number = DropoutMask.key(number, each);
        }
        return number;
    }

    /**
     * Returns the state of the process's CPU generator.
     *
     * @return the state, for the same version of libtorch
     */
    public static byte[] getState() {
        try (TorchScope scope = TorchScope.open()) {
            Tensor state = torch.getDefaultCPUGenerator().get_state();
            byte[] bytes = new byte[(int) state.numel()];
            new BytePointer(state.data_ptr()).get(bytes);
            return bytes;
        }
    }

    /**
     * Checks that a state is one of this version of libtorch.
     *
     * @param state what {@link #getState()} has returned
     * @throws IllegalArgumentException if it is of another version
     */
    public static void checkState(byte... state) {
        int expected = getState().length;
        Errors.check(
                state.length == expected,
                "The state of a generator has %s bytes, not %s: it is of another version of"
                        + " libtorch",
                expected,
                state.length);
    }

    /**
     * Sets the process's CPU generator back, so that it draws once more what it has drawn since.
     *
     * @param state what {@link #getState()} has returned
     * @throws IllegalArgumentException if it is of another version of libtorch
     */
    public static void setState(byte... state) {
        checkState(state);
        try (TorchScope scope = TorchScope.open()) {
            Tensor tensor = torch.getDefaultCPUGenerator().get_state(); // of the type and length
            new BytePointer(tensor.data_ptr()).put(state);
            torch.getDefaultCPUGenerator().set_state(tensor);
        }
    }
}
