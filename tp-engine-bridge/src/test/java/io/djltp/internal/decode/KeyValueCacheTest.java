package io.djltp.internal.decode;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;
import java.util.Random;

public class KeyValueCacheTest {

    private static final int DIM = 6;
    private static final int BATCH = 2;
    private static final int LAYERS = 2;

    @DataProvider
    public Object[][] heads() {
        return new Object[][] {
            // key/value heads, group, places of the rank's query heads, window, length, by oneDNN
            {1, 1, new int[] {0}, 0, 24, true},
            {2, 3, new int[] {0, 1, 2, 3, 4, 5}, 0, 450, true},
            {2, 3, new int[] {2, 3, 4}, 0, 512, true}, // other ranks have the other heads
            {2, 2, new int[] {0, 1, 2, 3}, 5, 450, true},
            {1, 4, new int[] {1, 2}, 1, 24, true},
            {1, 4, new int[] {1, 2}, 300, 512, true},
            {2, 3, new int[] {0, 1, 2, 3, 4, 5}, 0, 512, false},
            {2, 3, new int[] {2, 3, 4}, 100, 450, false},
        };
    }

    /** Attention over the cache, rows one by one and together, is that of float64. */
    @Test(dataProvider = "heads")
    public void attendsAsFloat64(
            int heads, int group, int[] places, int window, int length, boolean bound) {
        Random random = new Random(5);
        int queries = places.length;
        float[][][][] k = new float[LAYERS][BATCH][length][];
        float[][][][] v = new float[LAYERS][BATCH][length][];
        try (KeyValueCache cache =
                new KeyValueCache(LAYERS, BATCH, heads, group, places, length, DIM, bound)) {
            int room = (length + 63) / 64 * 64;
            Assert.assertEquals(cache.getBytes(), 4L * LAYERS * 2 * BATCH * heads * room * DIM);
            // what a text before has left there is not a number
            fill(cache, heads, Math.min(length, 130));
            int[] chunks = {20, 1, 1, 2, 39, 1, 1, 60, 1, 2, 1, 1, 125, 1, 1, 1, 60, 1, 130, 1, 1};
            int position = 0;
            for (int count : chunks) {
                if (position + count > length) {
                    break;
                }
                for (int layer = 0; layer < LAYERS; layer++) {
                    for (int text = 0; text < BATCH; text++) {
                        for (int t = position; t < position + count; t++) {
                            k[layer][text][t] = PackedWeightTest.floats(random, heads * DIM + 1);
                            v[layer][text][t] = PackedWeightTest.floats(random, heads * DIM + 1);
                            float[] both = new float[1 + 2 * heads * DIM];
                            System.arraycopy(k[layer][text][t], 1, both, 1, heads * DIM);
                            int half = 1 + heads * DIM;
                            System.arraycopy(v[layer][text][t], 1, both, half, heads * DIM);
                            cache.put(layer, text, t, both, 1);
                        }
                        int stride = queries * DIM + 3;
                        float[] q = PackedWeightTest.floats(random, 2 + count * stride);
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

    private static void fill(KeyValueCache cache, int heads, int count) {
        float[] row = new float[2 * heads * DIM];
        Arrays.fill(row, Float.NaN);
        for (int layer = 0; layer < LAYERS; layer++) {
            for (int t = 0; t < count; t++) {
                cache.put(layer, 0, t, row, 0);
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

    @Test(
            expectedExceptions = IllegalArgumentException.class,
            expectedExceptionsMessageRegExp = "The keys of 64 texts of 1000000 tokens are .*")
    public void aCacheBeyondABufferThrowsBeforeItIsAllocated() {
        new KeyValueCache(1, 64, 8, 1, new int[] {0}, 1_000_000, 128);
    }
}
