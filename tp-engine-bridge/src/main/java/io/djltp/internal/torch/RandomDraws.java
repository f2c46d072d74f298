package io.djltp.internal.torch;

import io.djltp.internal.libtorch.LibTorch;

import org.bytedeco.javacpp.BytePointer;
import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Generator;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.DispatchKey;

import java.nio.ByteBuffer;

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
        LibTorch.load(); // before the first class of the preset
        try (PointerScope scope = new PointerScope()) {
            Generator generator = torch.getDefaultCPUGenerator();
            Tensor state = generator.get_state();
            ByteBuffer bytes = new BytePointer(state.data_ptr()).capacity(state.numel()).asBuffer();
            long number = 0;
            while (bytes.hasRemaining()) {
                number = DropoutMask.key(number, bytes.get());
            }
            return number;
        }
    }
}
