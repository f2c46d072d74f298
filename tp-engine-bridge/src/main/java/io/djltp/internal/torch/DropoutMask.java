package io.djltp.internal.torch;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;

import io.djltp.cut.ShardRange;
import io.djltp.internal.Errors;
import io.djltp.internal.libtorch.LibTorch;

import org.bytedeco.javacpp.FloatPointer;
import org.bytedeco.pytorch.BoolOptional;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.TensorVector;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.List;

/**
 * Masks of dropout whose every element follows from a key and the place of the element in the whole
 * array, and from nothing else: a rank that holds a part of an array makes just that part of the
 * mask that one rank would make of the whole, and neither threads nor libtorch's generator, which
 * is one for the process, have a say in it.
 *
 * <p>The random number of place i is mix(key + (i + 1) &gamma;), with the constant and the function
 * of SplitMix64 (Steele, Lea and Flood, 2014, "Fast splittable pseudorandom number generators"): it
 * is the sequence of {@link java.util.SplittableRandom} with the key as its seed, at any place at
 * once. In time that is a tenth of libtorch's {@code bernoulli_} with a generator of its own, which
 * draws one number after the other.
 *
 * <p>A GPU computes the same numbers itself, in some twenty operations over the mask.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class DropoutMask {

    private static final long GAMMA = 0x9e3779b97f4a7c15L;
    private static final int CHUNK = 4096; // floats that stay in the cache

    private DropoutMask() {}

    /**
     * Which elements of a whole array the elements of a part are: a row of the part is made of
     * ranges of a row of the whole, one after another.
     *
     * @param ranges the places of the elements of the part's first row in the whole; one or more
     * @param stride the length of a row of the whole
     */
    public record Part(List<ShardRange> ranges, long stride) {

        /**
         * Returns elements that lie together in the whole.
         *
         * @param offset the place of the first
         * @return the part
         */
        public static Part from(long offset) {
            return new Part(List.of(new ShardRange(offset, Long.MAX_VALUE - offset)), 0);
        }
    }

    /**
     * Checks a rate of dropout.
     *
     * @param rate the share of zeros
     * @return the rate
     * @throws IllegalArgumentException if it is not from 0 to 1
     */
    public static float checkRate(float rate) {
        Errors.check(
                rate >= 0 && rate <= 1, "The rate of dropout must be from 0 to 1, not %s", rate);
        return rate;
    }

    /**
     * Makes a mask.
     *
     * @param like the array that is to be multiplied by the mask; of its shape, type and device is
     *     the mask, which is attached to its manager
     * @param key what the mask follows from, see {@link #key}
     * @param rate the share of zeros, from 0 to 1
     * @param part which elements of the whole the array has
     * @return the mask: 0, or 1 / (1 - rate)
     */
    public static NDArray of(NDArray like, long key, float rate, Part part) {
        checkRate(rate);
        LibTorch.load(); // before the first class of the preset
        ScalarType type = TensorView.of(like).tensor().scalar_type().intern();
        boolean single = type == ScalarType.Float;
        float kept = single && rate < 1 ? 1 / (float) (1 - (double) rate) : 1;
        NDArray mask;
        if (like.getDevice().isGpu()) {
            mask =
                    TorchScope.arrayWithoutGraph(
                            like.getManager(),
                            () -> onDevice(TensorView.of(like).tensor(), key, rate, kept, part));
        } else {
            mask = like.getManager().create(like.getShape(), DataType.FLOAT32, Device.cpu());
            fill(mask, key, rate, kept, part);
        }
        if (single) {
            return mask;
        }
        try (mask) {
            return converted(mask, type, rate);
        }
    }

    /** Computes a mask by operations on its device, float32 in the shape of an array. */
    static Tensor onDevice(Tensor like, long key, float rate, float kept, Part part) {
        long size = like.numel();
        TensorOptions options =
                like.options()
                        .dtype(new ScalarTypeOptional(ScalarType.Long))
                        .requires_grad(new BoolOptional(false));
        TensorVector ranges = new TensorVector();
        long width = 0;
        for (ShardRange range : part.ranges()) {
            long length = Math.min(range.length(), size - width);
            Scalar end = new Scalar(range.start() + length);
            ranges.push_back(torch.arange(new Scalar(range.start()), end, options));
            width += length;
        }
        Tensor places = torch.cat(ranges);
        if (width < size) {
            Tensor rows = torch.arange(new Scalar(size / width), options);
            places = rows.mul_(new Scalar(part.stride())).unsqueeze(1).add(places).view(-1);
        }
        Tensor numbers = places.add_(new Scalar(1L)).mul_(new Scalar(GAMMA)).add_(new Scalar(key));
        mixed(numbers, 30).mul_(new Scalar(0xbf58476d1ce4e5b9L));
        mixed(numbers, 27).mul_(new Scalar(0x94d049bb133111ebL));
        Tensor drawn = shifted(mixed(numbers, 31), 1);
        return drawn.ge(new Scalar(bound(rate)))
                .to(ScalarType.Float)
                .mul_(new Scalar(kept))
                .view(like.sizes());
    }

    /** {@code z ^ (z >>> shift)} */
    private static Tensor mixed(Tensor numbers, int shift) {
        return numbers.bitwise_xor_(shifted(numbers, shift));
    }

    /** Without the sign, which libtorch shifts in. */
    private static Tensor shifted(Tensor numbers, int shift) {
        return numbers.bitwise_right_shift(new Scalar((long) shift))
                .bitwise_and_(new Scalar(-1L >>> shift));
    }

    /** A number of 63 random bits is below this with the probability of the rate. */
    private static long bound(float rate) {
        return rate == 1 ? Long.MAX_VALUE : (long) (rate * 0x1p63);
    }

    /**
     * Mixes two numbers into one, to make keys of seeds and counts.
     *
     * @param seed a number
     * @param count another
     * @return a key
     */
    public static long key(long seed, long count) {
        return mix(mix(seed) + (count + 1) * GAMMA);
    }

    private static void fill(NDArray mask, long key, float rate, float kept, Part part) {
        long size = mask.size();
        if (size == 0) {
            return;
        }
        float[] chunk = new float[(int) Math.min(CHUNK, size)];
        long bound = bound(rate);
        try (TorchScope scope = TorchScope.open()) {
            FloatPointer memory = TensorView.of(mask).tensor().data_ptr_float();
            long written = 0;
            while (written < size) {
                int length = (int) Math.min(chunk.length, size - written);
                fill(chunk, length, written, key, bound, kept, part);
                memory.position(written).put(chunk, 0, length);
                written += length;
            }
        }
    }

    /** Computes elements {@code first} and following of a part. */
    private static void fill(
            float[] chunk, int length, long first, long key, long bound, float kept, Part part) {
        long width = part.ranges().stream().mapToLong(ShardRange::length).sum();
        int done = 0;
        while (done < length) {
            long row = (first + done) / width;
            long place = (first + done) % width;
            int number = 0;
            while (place >= part.ranges().get(number).length()) {
                place -= part.ranges().get(number).length();
                number++;
            }
            ShardRange range = part.ranges().get(number);
            int run = (int) Math.min(length - done, range.length() - place);
            long state = key + (range.start() + row * part.stride() + place + 1) * GAMMA;
            for (int i = done; i < done + run; i++) {
                chunk[i] = (mix(state) >>> 1) < bound ? 0 : kept;
                state += GAMMA;
            }
            done += run;
        }
    }

    private static long mix(long value) {
        long z = (value ^ (value >>> 30)) * 0xbf58476d1ce4e5b9L;
        z = (z ^ (z >>> 27)) * 0x94d049bb133111ebL;
        return z ^ (z >>> 31);
    }

    /** Converts zeros and ones, and scales them in the type that they are wanted in. */
    private static NDArray converted(NDArray mask, ScalarType type, float rate) {
        return TorchScope.arrayWithoutGraph(
                mask.getManager(),
                () -> {
                    Tensor converted = TensorView.of(mask).tensor().to(type);
                    return rate < 1 ? converted.div_(new Scalar(1 - (double) rate)) : converted;
                });
    }
}
