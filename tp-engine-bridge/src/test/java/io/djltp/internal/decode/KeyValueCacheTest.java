package io.djltp.internal.decode;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Random;

public class KeyValueCacheTest {

    private static final int LENGTH = 24;
    private static final int DIM = 6;
    private static final int BATCH = 2;
    private static final int LAYERS = 2;

    @DataProvider
    public Object[][] heads() {
        return new Object[][] {
            // key/value heads, group, places of the rank's query heads, window
            {1, 1, new int[] {0}, 0},
            {2, 3, new int[] {0, 1, 2, 3, 4, 5}, 0},
            {2, 3, new int[] {2, 3, 4}, 0}, // the ranks before and after have the others
            {2, 2, new int[] {0, 1, 2, 3}, 5},
            {1, 4, new int[] {1, 2}, 1},
        };
    }

    /** Attention over the cache, rows one by one and together, is that of float64. */
    @Test(dataProvider = "heads")
    public void attendsAsFloat64(int heads, int group, int[] places, int window) {
        Random random = new Random(5);
        int queries = places.length;
        float[][][][] k = new float[LAYERS][BATCH][LENGTH][];
        float[][][][] v = new float[LAYERS][BATCH][LENGTH][];
        try (KeyValueCache cache =
                new KeyValueCache(LAYERS, BATCH, heads, group, places, LENGTH, DIM)) {
            Assert.assertEquals(cache.getBytes(), 4L * LAYERS * 2 * BATCH * heads * LENGTH * DIM);
            int[] chunks = {1, 7, 1, 1, 5, 9};
            int position = 0;
            for (int count : chunks) {
                for (int layer = 0; layer < LAYERS; layer++) {
                    for (int text = 0; text < BATCH; text++) {
                        for (int t = position; t < position + count; t++) {
                            k[layer][text][t] = floats(random, heads * DIM + 1);
                            v[layer][text][t] = floats(random, heads * DIM + 1);
                            cache.put(layer, false, text, t, k[layer][text][t], 1);
                            cache.put(layer, true, text, t, v[layer][text][t], 1);
                        }
                        int stride = queries * DIM + 3;
                        float[] q = floats(random, 2 + count * stride);
                        float[] y = new float[1 + count * queries * DIM];
                        cache.attend(layer, text, position, count, window, q, 2, stride, y, 1);
                        for (int i = 0; i < count; i++) {
                            for (int h = 0; h < queries; h++) {
                                check(
                                        k[layer][text],
                                        v[layer][text],
                                        places[h] / group,
                                        position + i,
                                        window,
                                        q,
                                        2 + i * stride + h * DIM,
                                        y,
                                        1 + (i * queries + h) * DIM);
                            }
                        }
                    }
                }
                position += count;
            }
        }
    }

    private static void check(
            float[][] k,
            float[][] v,
            int head,
            int position,
            int window,
            float[] q,
            int from,
            float[] y,
            int at) {
        int begin = window == 0 ? 0 : Math.max(0, position + 1 - window);
        double[] weights = new double[position + 1];
        double sum = 0;
        for (int t = begin; t <= position; t++) {
            double score = 0;
            for (int j = 0; j < DIM; j++) {
                score += (double) q[from + j] * k[t][1 + head * DIM + j];
            }
            weights[t] = Math.exp(score);
            sum += weights[t];
        }
        for (int j = 0; j < DIM; j++) {
            double exact = 0;
            for (int t = begin; t <= position; t++) {
                exact += weights[t] / sum * v[t][1 + head * DIM + j];
            }
            Assert.assertEquals(y[at + j], exact, 2e-5, "position " + position);
        }
    }

    private static float[] floats(Random random, int count) {
        float[] numbers = new float[count];
        for (int i = 0; i < count; i++) {
            numbers[i] = (float) random.nextGaussian();
        }
        return numbers;
    }

    @Test(
            expectedExceptions = IllegalArgumentException.class,
            expectedExceptionsMessageRegExp = "The keys of 64 texts of 1000000 tokens are .*")
    public void aCacheBeyondABufferThrowsBeforeItIsAllocated() {
        new KeyValueCache(1, 64, 8, 1, new int[] {0}, 1_000_000, 128);
    }
}
