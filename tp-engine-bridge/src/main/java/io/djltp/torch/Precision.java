package io.djltp.torch;

import ai.djl.Device;

import io.djltp.internal.Errors;
import io.djltp.internal.libtorch.LibTorchFunctions;
import io.djltp.internal.libtorch.ProcessorArithmetic;

import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;

/**
 * The arithmetic of matrix products. Weights are float32 in all of them: a precision says how the
 * factors of a product are rounded before they are multiplied, and sums are in float32. It is what
 * PyTorch's autocast does, and needs half of the memory traffic or less of what is kept in it.
 *
 * <p>A precision is chosen only where the processor or the GPU has it, see {@link #check}: without
 * such instructions libtorch would emulate it, which is slower than float32.
 */
public enum Precision {

    /** 24 bits of significand: rounding changes a number by \(2^{-24}\) of it. The default. */
    FLOAT32("float32", 24),

    /**
     * 8 bits of significand and the range of float32: rounding changes a number by up to \(2^{-8}\)
     * of it. On processors with AVX512-BF16 or AMX, and GPUs of compute capability 8.0 or above.
     */
    BFLOAT16("bfloat16", 8),

    /**
     * 11 bits of significand and the range of float32, in arrays of float32. On GPUs of compute
     * capability 8.0 or above.
     */
    TF32("tf32", 11),

    /**
     * 11 bits of significand, and numbers from 6e-8 to 65504: gradients need a scaled loss. On GPUs
     * of compute capability 7.0 or above.
     */
    FLOAT16("float16", 11);

    private final String text;
    private final int bits;
    private final Map<Device, Optional<String>> reasons = new ConcurrentHashMap<>(); // found

    Precision(String text, int bits) {
        this.text = text;
        this.bits = bits;
    }

    /**
     * Returns the precision of a name.
     *
     * @param name {@code float32}, {@code bfloat16}, {@code tf32} or {@code float16}
     * @return the precision
     * @throws IllegalArgumentException if the name is another one
     */
    public static Precision of(String name) {
        return Arrays.stream(values())
                .filter(each -> each.text.equals(name))
                .findFirst()
                .orElseThrow(
                        () ->
                                new IllegalArgumentException(
                                        "The precision must be one of %s, not %s"
                                                .formatted(names(List.of(values())), name)));
    }

    /**
     * Returns what a device has.
     *
     * @param device the device
     * @return the precisions that {@link #check} lets pass
     */
    public static List<Precision> available(Device device) {
        return Arrays.stream(values()).filter(each -> each.whyNot(device).isEmpty()).toList();
    }

    private static String names(List<Precision> precisions) {
        return precisions.stream().map(each -> each.text).collect(Collectors.joining(", "));
    }

    /**
     * Returns by how much of it a number is changed at most when it is rounded to this precision:
     * half a unit of the last place.
     *
     * @return the unit roundoff \(2^{-b}\) of b bits of significand
     */
    public double roundingError() {
        return Math.scalb(1.0, -bits);
    }

    /**
     * Returns why a device cannot compute with it.
     *
     * @param device the device of a rank
     * @return the reason, or nothing if it can
     */
    public Optional<String> whyNot(Device device) {
        return this == FLOAT32
                ? Optional.empty()
                : reasons.computeIfAbsent(device, this::findReason);
    }

    private Optional<String> findReason(Device device) {
        if (device.isGpu()) {
            int least = this == FLOAT16 ? 70 : 80;
            String needs = "needs a GPU of compute capability " + digits(least) + " or above, and ";
            try {
                int has = LibTorchFunctions.computeCapability(device.getDeviceId());
                return has >= least
                        ? Optional.empty()
                        : Optional.of(needs + device + " has " + digits(has));
            } catch (IllegalStateException | UnsatisfiedLinkError e) {
                String why = "libtorch does not find out that of ";
                return Optional.of(needs + why + device + " (" + e.getMessage() + ")");
            }
        }
        return this == BFLOAT16
                ? ProcessorArithmetic.whyNoBFloat16()
                : Optional.of("is arithmetic of GPUs, and the device is " + device);
    }

    /**
     * Lets a device compute with it that has no instructions for it: for tests of its arithmetic.
     */
    void allow(Device device) {
        reasons.put(device, Optional.empty());
    }

    /** Takes back {@link #allow}. */
    void forget(Device device) {
        reasons.remove(device);
    }

    private static String digits(int capability) {
        return capability / 10 + "." + capability % 10;
    }

    /**
     * Checks that a device has the instructions for it.
     *
     * @param device the device of a rank
     * @throws IllegalArgumentException if it has not; the message says what it has
     */
    public void check(Device device) {
        whyNot(device)
                .ifPresent(
                        why -> {
                            throw Errors.argument(
                                    "The precision %s %s. It is not emulated; use %s",
                                    text, why, names(available(device)));
                        });
    }

    /** {@return the name that {@link #of} takes} */
    @Override
    public String toString() {
        return text;
    }
}
