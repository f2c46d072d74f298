package io.djltp.internal.decode;

import io.djltp.internal.torch.TorchScope;

import org.bytedeco.pytorch.DoubleOptional;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptional;
import org.bytedeco.pytorch.global.torch;

import java.nio.FloatBuffer;

/**
 * The keys and values of a rank's heads, [layers, 2, batch, key/value heads, length, d], and the
 * attention of queries over them. It is allocated once, and never copied as texts grow.
 *
 * <p>Query heads that share a key/value head are rows of one product. Where ranks cut between them,
 * the places of those of other ranks stay empty.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class KeyValueCache implements AutoCloseable {

    private static final float NEVER = Float.NEGATIVE_INFINITY;

    private final int layers;
    private final int batch;
    private final int heads; // of keys and values
    private final int length;
    private final int features;
    private final int group; // places for query heads of each
    private final int[] places; // of the rank's query heads
    private final boolean ordered; // whether they are 0, 1, 2, ...
    private final Tensor[][][] parts; // [layers][2][batch], each [heads, length, d]
    private final FloatBuffer[][] memory; // [layers][2]
    private final Tensor all;
    private final Tensor query; // [heads, group, d]
    private final Tensor mixed;
    private final FloatBuffer queryMemory;
    private final FloatBuffer mixedMemory;
    private float[] rows = {};
    private Tensor mask; // of the last rows
    private long maskKey = -1;

    /**
     * Allocates the cache.
     *
     * @param layers the layers
     * @param batch how many texts it holds
     * @param heads the key/value heads of the rank
     * @param group how many query heads of the model share one
     * @param places the place of each query head of the rank, counted over the groups
     * @param length the most tokens of a text
     * @param features the features d of a head
     * @throws IllegalArgumentException if a layer is larger than a buffer of Java
     */
    public KeyValueCache(
            int layers, int batch, int heads, int group, int[] places, int length, int features) {
        this.layers = layers;
        this.batch = batch;
        this.heads = heads;
        this.group = group;
        this.places = places.clone();
        this.length = length;
        this.features = features;
        long each = (long) batch * heads * length * features;
        if (each > Integer.MAX_VALUE - 8) {
            throw new IllegalArgumentException(
                    ("The keys of %s texts of %s tokens are %s numbers in a layer, and a cache"
                                    + " holds up to 2147483639: use a shorter length, a smaller"
                                    + " batch or more ranks")
                            .formatted(batch, length, each));
        }
        boolean inOrder = places.length == heads * group;
        for (int i = 0; i < places.length; i++) {
            inOrder &= places[i] == i;
        }
        ordered = inOrder;
        parts = new Tensor[layers][2][batch];
        memory = new FloatBuffer[layers][2];
        try (TorchScope scope = TorchScope.withoutGraph()) {
            long[] shape = {layers, 2, batch, heads, length, features};
            all = torch.empty(shape).retainReference();
            for (int i = 0; i < layers; i++) {
                for (int j = 0; j < 2; j++) {
                    Tensor part = all.select(0, i).select(0, j);
                    memory[i][j] = RowBuffer.memoryOf(part);
                    for (int k = 0; k < batch; k++) {
                        parts[i][j][k] = part.select(0, k).retainReference();
                    }
                }
            }
            query = torch.zeros(heads, group, features).retainReference();
            mixed = torch.zeros(heads, group, features).retainReference();
        }
        queryMemory = RowBuffer.memoryOf(query);
        mixedMemory = RowBuffer.memoryOf(mixed);
    }

    /**
     * Returns the memory that a cache takes.
     *
     * @return the bytes
     */
    public long getBytes() {
        return (long) layers * 2 * batch * heads * length * features * Float.BYTES;
    }

    /**
     * Returns the most tokens of a text.
     *
     * @return the length
     */
    public int getLength() {
        return length;
    }

    /**
     * Keeps the key or value of a token.
     *
     * @param layer the layer
     * @param values whether it is a value
     * @param text the number of the text
     * @param position the position of the token
     * @param from where it is, [heads, d], at an offset
     * @param offset the offset
     */
    public void put(int layer, boolean values, int text, int position, float[] from, int offset) {
        FloatBuffer to = memory[layer][values ? 1 : 0];
        int at = (text * heads * length + position) * features;
        for (int i = 0; i < heads; i++) {
            to.put(at, from, offset + i * features, features);
            at += length * features;
        }
    }

    /**
     * Computes the attention of the rows of one text whose keys and values are there.
     *
     * @param layer the layer
     * @param text the number of the text
     * @param position the position of the first row; the others follow
     * @param count how many rows
     * @param window how many tokens a row sees, itself among them, or 0 for all
     * @param queries the queries, scaled, [count, stride] from the offset of the first
     * @param offset where the first row begins
     * @param stride how far the rows are apart
     * @param results where the results go, [count, query heads of the rank, d]
     * @param to where the first result begins
     */
    public void attend(
            int layer,
            int text,
            int position,
            int count,
            int window,
            float[] queries,
            int offset,
            int stride,
            float[] results,
            int to) {
        int end = position + count;
        int begin = window > 0 ? Math.max(0, position + 1 - window) : 0;
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor k = parts[layer][0][text].narrow(1, begin, end - begin);
            Tensor v = parts[layer][1][text].narrow(1, begin, end - begin);
            if (count == 1) {
                attendOne(k, v, queries, offset, results, to);
            } else {
                attendMany(k, v, position - begin, count, window, queries, offset, stride);
                gather(count, results, to);
            }
        }
    }

    private void attendOne(
            Tensor k, Tensor v, float[] queries, int offset, float[] results, int to) {
        int d = features;
        if (ordered) {
            queryMemory.put(0, queries, offset, places.length * d);
        } else {
            for (int i = 0; i < places.length; i++) {
                queryMemory.put(places[i] * d, queries, offset + i * d, d);
            }
        }
        Tensor scores = query.bmm(k.transpose(1, 2));
        torch.softmax_out(scores, scores, 2);
        torch.bmm_out(mixed, scores, v);
        if (ordered) {
            mixedMemory.get(0, results, to, places.length * d);
        } else {
            for (int i = 0; i < places.length; i++) {
                mixedMemory.get(places[i] * d, results, to + i * d, d);
            }
        }
    }

    private void attendMany(
            Tensor k,
            Tensor v,
            int before,
            int count,
            int window,
            float[] queries,
            int offset,
            int stride) {
        int d = features;
        int size = heads * group * count * d;
        if (rows.length < size) {
            rows = new float[size];
        }
        for (int i = 0; i < places.length; i++) {
            for (int t = 0; t < count; t++) {
                int from = offset + t * stride + i * d;
                System.arraycopy(queries, from, rows, (places[i] * count + t) * d, d);
            }
        }
        // a batch of key/value heads, whose queries share them
        Tensor q = torch.empty(heads, group, count, d);
        RowBuffer.memoryOf(q).put(0, rows, 0, size);
        Tensor y =
                torch.scaled_dot_product_attention(
                        q,
                        shared(k),
                        shared(v),
                        new TensorOptional(mask(before, count, window)),
                        0,
                        false,
                        new DoubleOptional(1.0),
                        false);
        RowBuffer.read(y.contiguous(), rows, size);
    }

    private Tensor shared(Tensor keys) {
        return keys.unsqueeze(1).expand(heads, group, keys.size(1), features);
    }

    private void gather(int count, float[] results, int to) {
        int d = features;
        for (int i = 0; i < places.length; i++) {
            for (int t = 0; t < count; t++) {
                int at = to + (t * places.length + i) * d;
                System.arraycopy(rows, (places[i] * count + t) * d, results, at, d);
            }
        }
    }

    /** Returns which of all keys each of some rows sees, [count, before + count]. */
    private Tensor mask(int before, int count, int window) {
        long key = ((long) before * (length + 1) + count) * (length + 1L) + window;
        if (key != maskKey) {
            if (mask != null) {
                mask.close();
            }
            Tensor seen = torch.zeros(count, before + count).fill_(new Scalar(NEVER));
            seen = seen.triu_(before + 1L);
            if (window > 0) {
                Tensor far = torch.zeros(count, before + count).fill_(new Scalar(NEVER));
                seen = seen.add_(far.tril_(before - (long) window));
            }
            mask = seen.retainReference();
            maskKey = key;
        }
        return mask;
    }

    /** Frees the cache. */
    @Override
    public void close() {
        for (Tensor[][] layer : parts) {
            for (Tensor[] part : layer) {
                for (Tensor text : part) {
                    text.close();
                }
            }
        }
        all.close();
        query.close();
        mixed.close();
        if (mask != null) {
            mask.close();
        }
    }
}
