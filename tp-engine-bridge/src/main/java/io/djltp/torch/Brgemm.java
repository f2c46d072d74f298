package io.djltp.torch;

import com.sun.jna.Function;
import com.sun.jna.Pointer;

import org.bytedeco.pytorch.Tensor;

/**
 * A product of matrices by {@code at::native::cpublas::brgemm}, which libtorch's attention uses: in
 * the calling thread, from factors where they lie, with sums in float32. The preset does not bind
 * it, and it is looked up by its name, which is that of the version of libtorch that {@link
 * LibTorch} insists on.
 */
final class Brgemm {

    private final Function multiply;
    private final int bytes;
    private final long mostRows;
    private final boolean packed;

    /**
     * Looks the function up.
     *
     * @param symbol its symbol, which says the type of the factors
     * @param bytes the bytes of an element of that type
     * @param mostRows rows of a call. A thread keeps a compiled kernel for each shape that it has
     *     seen: of these rows, and of the powers of two below, which the rest is divided into
     * @param packed whether the right factor is in pairs of rows ("VNNI")
     * @throws UnsatisfiedLinkError if there is none of this name, as on Windows
     */
    Brgemm(String symbol, int bytes, long mostRows, boolean packed) {
        multiply = LibTorchFunctions.get(symbol);
        this.bytes = bytes;
        this.mostRows = mostRows;
        this.packed = packed;
    }

    /**
     * Computes {@code target = left right}, or {@code target += left right}.
     *
     * @param left the left factor, [m, k], its rows contiguous
     * @param right the right factor, [k, n], its rows contiguous; if packed [k/2, n, 2]
     * @param target where the product goes, float32 [m, n], its rows contiguous
     * @param add whether it is added to what is there
     */
    void run(Tensor left, Tensor right, Tensor target, boolean add) {
        long rows = left.size(0);
        long inner = left.size(1);
        long columns = right.size(1);
        long ofLeft = rows > 1 ? left.stride(0) : inner;
        long ofTarget = rows > 1 ? target.stride(0) : columns;
        long from = left.data_ptr().address();
        long to = target.data_ptr().address();
        Pointer factor = new Pointer(right.data_ptr().address());
        boolean farLeft = MemoryFetch.isWorthwhile(left);
        boolean farTarget = add && MemoryFetch.isWorthwhile(target);
        long most = farLeft || farTarget ? Math.min(mostRows, MemoryFetch.ROWS) : mostRows;
        for (long done = 0; done < rows; ) {
            long part = Math.min(most, Long.highestOneBit(rows - done));
            Pointer ofRows = new Pointer(from + done * ofLeft * bytes);
            Pointer into = new Pointer(to + done * ofTarget * Float.BYTES);
            if (farLeft) {
                MemoryFetch.read(ofRows, ((part - 1) * ofLeft + inner) * bytes / Float.BYTES);
            }
            if (farTarget) {
                MemoryFetch.read(into, (part - 1) * ofTarget + columns);
            }
            multiply.invoke(
                    new Object[] {
                        part,
                        columns,
                        inner,
                        ofLeft,
                        packed ? columns : right.stride(0),
                        ofTarget,
                        add ? 1 : 0,
                        ofRows,
                        factor,
                        into,
                        packed ? 1 : 0
                    });
            done += part;
        }
    }
}
