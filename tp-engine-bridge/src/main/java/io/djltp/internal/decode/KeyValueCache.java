package io.djltp.internal.decode;

import io.djltp.internal.Errors;
import io.djltp.internal.torch.Brgemm;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.pytorch.DoubleOptional;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptional;
import org.bytedeco.pytorch.global.torch;
import org.jspecify.annotations.Nullable;

import java.nio.FloatBuffer;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * The keys and values of a rank's heads, and the attention of queries over them. It is allocated
 * once, and never copied as texts grow. Values are [layers, batch, heads, length, d]; of keys, the
 * numbers of up to 256 tokens lie side by side, [layers, batch, heads, blocks, d, tokens], as the
 * product with a query reads them.
 *
 * <p>Query heads that share a key/value head are rows of one product. Where ranks cut between them,
 * the places of those of other ranks stay empty.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class KeyValueCache implements AutoCloseable {

    private static final float NEVER = Float.NEGATIVE_INFINITY;

    /** Tokens of a product: oneDNN compiles one for each number of them. */
    private static final int STEP = 64;

    private static final int MOST = 4 * STEP;

    private final int batch;
    private final int heads; // of keys and values
    private final int length; // a multiple of STEP
    private final int block; // tokens of keys that lie side by side
    private final int features;
    private final int group; // places for query heads of each
    private final int[] places; // of the rank's query heads
    private final boolean ordered; // whether they are 0, 1, 2, ...
    private final boolean bound;
    private final Tensor all; // [layers, 2, batch, heads, length, d]
    private final long address; // of its memory
    private final FloatBuffer[][] memory; // [layers][2]
    private final int[][] ends; // [layers][batch], tokens that have a value
    private final RowBuffer query; // [heads, group, d]
    private final RowBuffer mixed;
    private final RowBuffer scores; // [heads, group, room of the tokens that are seen]
    private final Map<Integer, Tensor> scoreRows = new HashMap<>(); // by that room
    private final float[] never;
    private final float[] nothing;
    private float[] rows = {};
    private @Nullable Tensor mask; // of the last rows
    private long maskKey;

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
        this(layers, batch, heads, group, places, length, features, Brgemm.Direct.IS_BOUND);
    }

    KeyValueCache(
            int layers,
            int batch,
            int heads,
            int group,
            int[] places,
            int length,
            int features,
            boolean bound) {
        this.bound = bound;
        this.batch = batch;
        this.heads = heads;
        this.group = group;
        this.places = places.clone();
        this.features = features;
        long each = (long) batch * heads * (length + STEP) * features;
        Errors.check(
                each <= Integer.MAX_VALUE - 8,
                "The keys of %s texts of %s tokens are %s numbers in a layer, and a cache holds up"
                        + " to 2147483639: use a shorter length, a smaller batch or more ranks",
                batch,
                length,
                each);
        this.length = steps(length);
        int tokens = MOST;
        while (this.length % tokens != 0) {
            tokens -= STEP;
        }
        block = tokens;
        boolean inOrder = places.length == heads * group;
        for (int i = 0; i < places.length; i++) {
            inOrder &= places[i] == i;
        }
        ordered = inOrder;
        ends = new int[layers][batch];
        memory = new FloatBuffer[layers][2];
        try (TorchScope scope = TorchScope.withoutGraph()) {
            long[] shape = {layers, 2, batch, heads, this.length, features};
            all = torch.zeros(shape).retainReference();
            address = all.data_ptr().address();
            for (int i = 0; i < layers; i++) {
                for (int j = 0; j < 2; j++) {
                    memory[i][j] = RowBuffer.memoryOf(all.select(0, i).select(0, j));
                }
            }
        }
        query = new RowBuffer((long) heads * group * features);
        mixed = new RowBuffer((long) heads * group * features);
        scores = new RowBuffer((long) heads * group * room(this.length));
        for (int i = 0; i < query.capacity(); i++) {
            query.memory().put(i, 0);
        }
        never = new float[room(this.length)];
        Arrays.fill(never, NEVER);
        nothing = new float[STEP * features];
    }

    /**
     * Returns the tokens of a text for which a cache has room.
     *
     * @param tokens the most tokens of a text
     * @return as many, or a few more
     */
    public static int steps(int tokens) {
        return (tokens + STEP - 1) / STEP * STEP;
    }

    /** Returns how far rows of scores are apart: one of few numbers, as products are compiled. */
    private static int room(int tokens) {
        int step = Math.max(STEP, Integer.highestOneBit(tokens - 1) / 4);
        return (tokens + step - 1) / step * step;
    }

    /**
     * Returns the memory that a cache takes.
     *
     * @return the bytes
     */
    public long getBytes() {
        return (long) memory.length * 2 * batch * heads * length * features * Float.BYTES;
    }

    /**
     * Returns the most tokens of a text.
     *
     * @return the length
     */
    public int getLength() {
        return length;
    }

    private int begin(int text, int head) {
        return (text * heads + head) * length * features;
    }

    /**
     * Keeps the key and the value of a token.
     *
     * @param layer the layer
     * @param text the number of the text
     * @param position the position of the token
     * @param from where they are, the keys of all heads, then the values, [2, heads, d]
     * @param offset where they begin
     */
    public void put(int layer, int text, int position, float[] from, int offset) {
        FloatBuffer keys = memory[layer][0];
        FloatBuffer values = memory[layer][1];
        int inBlock = position % block;
        // values of what a product reads beyond the text must be numbers
        int over = (position + 1) % STEP;
        boolean stale = over == 1 || position + 1 < ends[layer][text];
        int clear = stale && over > 0 ? (STEP - over) * features : 0;
        ends[layer][text] = position + 1;
        for (int i = 0; i < heads; i++) {
            int at = begin(text, i) + (position - inBlock) * features + inBlock;
            int of = offset + i * features;
            for (int j = 0; j < features; j++) {
                keys.put(at + j * block, from[of + j]);
            }
            at = begin(text, i) + position * features;
            values.put(at, from, of + heads * features, features);
            values.put(at + features, nothing, 0, clear);
        }
    }

    /**
     * Copies the key and the value of a token that is there.
     *
     * @param layer the layer
     * @param text the number of the text
     * @param position the position of the token
     * @param to where they go, the keys of all heads, then the values, [2, heads, d]
     */
    public void get(int layer, int text, int position, float[] to) {
        int inBlock = position % block;
        for (int i = 0; i < heads; i++) {
            int at = begin(text, i) + (position - inBlock) * features + inBlock;
            for (int j = 0; j < features; j++) {
                to[i * features + j] = memory[layer][0].get(at + j * block);
            }
            at = begin(text, i) + position * features;
            memory[layer][1].get(at, to, (heads + i) * features, features);
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
        int begin = window > 0 ? Math.max(0, position + 1 - window) : 0;
        int end = position + count;
        if (count == 1) {
            putQuery(queries, offset);
            attendOne(layer, text, begin, end);
            getResult(results, to);
            return;
        }
        arrange(count, queries, offset, stride);
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor k = keysOf(layer, text, 0, end);
            k = k.transpose(2, 3).reshape(heads, k.size(1) * block, features);
            attendMany(
                    k.narrow(1, begin, end - begin),
                    all.select(0, layer).select(0, 1).select(0, text).narrow(1, begin, end - begin),
                    mask(position - begin, count, window));
        }
        gather(count, results, to);
    }

    /** Returns the blocks of keys that have some tokens, [heads, blocks, d, tokens]. */
    private Tensor keysOf(int layer, int text, int begin, int end) {
        Tensor keys = all.select(0, layer).select(0, 0).select(0, text);
        int first = begin / block;
        return keys.view(heads, length / block, features, block)
                .narrow(1, first, (end + block - 1) / block - first);
    }

    private void putQuery(float[] queries, int offset) {
        int d = features;
        if (ordered) {
            query.memory().put(0, queries, offset, places.length * d);
        } else {
            for (int i = 0; i < places.length; i++) {
                query.memory().put(places[i] * d, queries, offset + i * d, d);
            }
        }
    }

    private void getResult(float[] results, int to) {
        int d = features;
        if (ordered) {
            mixed.memory().get(0, results, to, places.length * d);
        } else {
            for (int i = 0; i < places.length; i++) {
                mixed.memory().get(places[i] * d, results, to + i * d, d);
            }
        }
    }

    private void attendOne(int layer, int text, int begin, int end) {
        int d = features;
        int first = bound ? begin / STEP * STEP : begin / block * block;
        int last = bound ? steps(end) : (end + block - 1) / block * block;
        int room = room(last - first);
        if (bound) {
            multiply(layer, text, first, last, room, true);
        } else {
            try (TorchScope scope = TorchScope.withoutGraph()) {
                Tensor q = query.view(heads, group * d).view(heads, 1, group, d);
                Tensor products = torch.matmul(q, keysOf(layer, text, begin, end));
                scoreRows(room)
                        .view(heads, group, room)
                        .narrow(2, 0, last - first)
                        .copy_(products.transpose(1, 2).reshape(heads, group, last - first));
            }
        }
        for (int i = 0; i < heads * group; i++) {
            scores.memory().put(i * room, never, 0, begin - first);
            scores.memory().put(i * room + end - first, never, 0, room - (end - first));
        }
        Tensor weights = scoreRows(room);
        torch.softmax_out(weights, weights, 1);
        if (bound) {
            multiply(layer, text, first, last, room, false);
        } else {
            try (TorchScope scope = TorchScope.withoutGraph()) {
                Tensor values = all.select(0, layer).select(0, 1).select(0, text);
                torch.bmm_out(
                        mixed.view(heads, group * d).view(heads, group, d),
                        weights.view(heads, group, room).narrow(2, begin - first, end - begin),
                        values.narrow(1, begin, end - begin));
            }
        }
    }

    private Tensor scoreRows(int room) {
        return scoreRows.computeIfAbsent(
                room, each -> scores.view((long) heads * group, each).retainReference());
    }

    /** Multiplies queries with keys, or their weights with values, of a range of tokens. */
    private void multiply(int layer, int text, int first, int last, int room, boolean ofKeys) {
        int d = features;
        long part = 2L * layer + (ofKeys ? 0 : 1);
        long layerAt = address + Float.BYTES * part * batch * heads * length * d;
        long weightsAt = scores.address();
        long rowsAt = (ofKeys ? query : mixed).address();
        for (int i = 0; i < heads; i++) {
            long row = rowsAt + (long) Float.BYTES * i * group * d;
            for (int at = first, count; at < last; at += count) {
                int inBlock = at % block;
                count = Math.min(ofKeys ? block - inBlock : MOST, last - at);
                long weight = weightsAt + (long) Float.BYTES * (i * group * room + at - first);
                int from = begin(text, i) + at * d;
                if (ofKeys) {
                    from += inBlock - inBlock * d;
                }
                long factor = layerAt + (long) Float.BYTES * from;
                if (ofKeys) {
                    Brgemm.Direct.multiply(
                            group, count, d, d, block, room, false, row, factor, weight, false);
                } else {
                    Brgemm.Direct.multiply(
                            group, d, count, room, d, d, at > first, weight, factor, row, false);
                }
            }
        }
    }

    /** Puts the queries of some tokens head by head. */
    private void arrange(int count, float[] queries, int offset, int stride) {
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
    }

    private void attendMany(Tensor k, Tensor v, Tensor seen) {
        // a batch of key/value heads, whose queries share them
        Tensor q = torch.empty(heads, group, seen.size(0), features);
        int size = Math.toIntExact(q.numel());
        RowBuffer.memoryOf(q).put(0, rows, 0, size);
        Tensor y =
                torch.scaled_dot_product_attention(
                        q,
                        shared(k),
                        shared(v),
                        new TensorOptional(seen),
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
        Tensor known = mask;
        if (known != null && key == maskKey) {
            return known;
        }
        if (known != null) {
            known.close();
        }
        Tensor seen = torch.zeros(count, before + count).fill_(new Scalar(NEVER));
        seen = seen.triu_(before + 1L);
        if (window > 0) {
            Tensor far = torch.zeros(count, before + count).fill_(new Scalar(NEVER));
            seen = seen.add_(far.tril_(before - (long) window));
        }
        maskKey = key;
        mask = seen.retainReference();
        return seen;
    }

    /** Frees the cache. */
    @Override
    public void close() {
        all.close();
        scoreRows.values().forEach(Tensor::close);
        List.of(query, mixed, scores).forEach(RowBuffer::close);
        if (mask != null) {
            mask.close();
        }
    }
}
