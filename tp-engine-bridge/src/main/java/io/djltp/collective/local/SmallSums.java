package io.djltp.collective.local;

import io.djltp.collective.ReduceOp;

import org.bytedeco.javacpp.BytePointer;
import org.bytedeco.javacpp.Pointer;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * The arithmetic of small reductions, of floats on Java's arrays, whose loops the virtual machine
 * vectorizes: each element is \(((x_0 + x_1) + x_2) + ...\) in the order of the ranks, as in {@link
 * BlockReduction}.
 */
final class SmallSums {

    private float[] floats = new float[0];
    private float[] floatSum = new float[0];
    private ByteBuffer result = ByteBuffer.allocateDirect(0);
    private Pointer pointer;

    /** Returns where the result of the last reduction lies. */
    Pointer getResult() {
        return pointer;
    }

    /**
     * Reduces a range of the elements on all shelves.
     *
     * @param shelves what is reduced
     * @param turn the place on each shelf
     * @param start the first element of the range
     * @param length the number of elements
     * @param op the reduction
     */
    void reduceFloats(SmallMessages.Shelf[] shelves, int turn, int start, int length, ReduceOp op) {
        if (floatSum.length < length) {
            floatSum = new float[length];
            floats = new float[length];
        }
        float[] sum = floatSum;
        shelves[0].place(turn).asFloatBuffer().get(start, sum, 0, length);
        for (int rank = 1; rank < shelves.length; rank++) {
            shelves[rank].place(turn).asFloatBuffer().get(start, floats, 0, length);
            add(sum, floats, length, op);
        }
        result(length * Float.BYTES).asFloatBuffer().put(0, sum, 0, length);
    }

    private static void add(float[] sum, float[] more, int length, ReduceOp op) {
        if (op == ReduceOp.SUM) {
            for (int i = 0; i < length; i++) {
                sum[i] += more[i];
            }
        } else if (op == ReduceOp.MAX) {
            for (int i = 0; i < length; i++) {
                sum[i] = Math.max(sum[i], more[i]);
            }
        } else {
            for (int i = 0; i < length; i++) {
                sum[i] = Math.min(sum[i], more[i]);
            }
        }
    }

    /** Does the same with doubles, one by one: they are few, such as a sum of squares. */
    void reduceDoubles(
            SmallMessages.Shelf[] shelves, int turn, int start, int length, ReduceOp op) {
        ByteBuffer sums = result(length * Double.BYTES);
        for (int i = 0; i < length; i++) {
            int place = (start + i) * Double.BYTES;
            double sum = shelves[0].place(turn).getDouble(place);
            for (int rank = 1; rank < shelves.length; rank++) {
                sum = add(sum, shelves[rank].place(turn).getDouble(place), op);
            }
            sums.putDouble(i * Double.BYTES, sum);
        }
    }

    private static double add(double sum, double more, ReduceOp op) {
        if (op == ReduceOp.SUM) {
            return sum + more;
        }
        return op == ReduceOp.MAX ? Math.max(sum, more) : Math.min(sum, more);
    }

    private ByteBuffer result(int bytes) {
        if (pointer == null || result.capacity() < bytes) {
            result = ByteBuffer.allocateDirect(Math.max(bytes, 1)).order(ByteOrder.nativeOrder());
            pointer = new BytePointer(result);
        }
        return result;
    }
}
