package io.djltp.llm;

import ai.djl.ndarray.NDManager;

import io.djltp.collective.Communicator;
import io.djltp.internal.decode.KeyValueCache;
import io.djltp.internal.decode.PackedWeight;
import io.djltp.internal.decode.RankRows;
import io.djltp.internal.decode.RowActivation;
import io.djltp.internal.decode.RowBuffer;
import io.djltp.internal.decode.SharedRows;
import io.djltp.internal.safetensors.SafetensorsFolder;
import io.djltp.nn.attention.RotaryEmbedding;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.util.Arrays;

/**
 * The network of a model on one rank, for rows of any texts: its heads, its hidden features and its
 * token ids, with the sum over ranks behind attention and MLP. Products and attention are
 * libtorch's, what is small is computed in Java.
 */
final class RankDecoder implements AutoCloseable {

    private final ModelConfig config;
    private final RankWeights weights;
    private final RankRows group;
    private final RowBuffer buffer;
    private final KeyValueCache cache;
    private final RowActivation activation;
    private final TokenSampler sampler;
    private final int width;
    private final int dim;
    private final int heads;
    private final int keyHeads;
    private final int stride; // of queries, keys and values of a row
    private final int hidden;
    private final float scale;
    private final Angles angles;

    private final float[] x;
    private final float[] y;
    private final float[] projected;
    private final float[] mixed;
    private final float[] raised;
    private final float[] activated;
    private float[] logits = {};
    private final int positions;
    private @Nullable Angles scaledAngles; // of a text of the length
    private int scaledLength;

    /** Cosines and sines, one row for each position. */
    private static final class Angles {

        private final int pairs;
        private final float[] cosines;
        private final float[] sines;

        Angles(double[] frequencies, double factor, int positions) {
            pairs = frequencies.length;
            cosines = new float[Math.multiplyExact(positions, pairs)];
            sines = new float[cosines.length];
            for (int t = 0; t < positions; t++) {
                for (int i = 0; i < pairs; i++) {
                    int at = t * pairs + i;
                    cosines[at] = (float) (factor * Math.cos(t * frequencies[i]));
                    sines[at] = (float) (factor * Math.sin(t * frequencies[i]));
                }
            }
        }
    }

    RankDecoder(
            ModelConfig config,
            SafetensorsFolder files,
            @Nullable Adapter adapter,
            WeightType type,
            Communicator ranks,
            @Nullable SharedRows shared,
            Decoder.Size size,
            NDManager manager)
            throws IOException {
        this.config = config;
        width = config.getWidth();
        dim = config.getHeadDim();
        int rank = ranks.getRank();
        int most = size.rows();
        long widest = Math.max(width, Math.max((long) config.getHeads() * dim, hiddenOf(ranks)));
        buffer = new RowBuffer(PackedWeight.roomFor(most, widest));
        weights =
                new RankWeights(
                        config, files, adapter, type, rank, ranks.getSize(), buffer, manager);
        heads = (int) weights.queryHeads.length();
        keyHeads = (int) weights.keyHeads.length();
        hidden = (int) weights.hidden.length();
        stride = (heads + 2 * keyHeads) * dim;
        scale = (float) (1 / Math.sqrt(dim));
        int sharing = config.getHeads() / config.getKeyValueHeads();
        int[] places = new int[heads];
        int begin = (int) weights.queryHeads.start();
        Arrays.setAll(places, i -> begin + i - (int) weights.keyHeads.start() * sharing);
        cache =
                new KeyValueCache(
                        config.getLayers(),
                        size.batch(),
                        keyHeads,
                        sharing,
                        places,
                        size.length(),
                        dim);
        int ids = config.getVocabularySize();
        int mostIds = (ids + ranks.getSize() - 1) / ranks.getSize();
        group = new RankRows(ranks, shared, (long) most * width, 2L * mostIds + 2);
        int own = (int) weights.ids.length();
        int from = (int) weights.ids.start();
        sampler = new TokenSampler(group, ranks.getSize(), from, own, mostIds);
        positions = size.length();
        activation = RowActivation.valueOf(config.getActivation().name());
        RotaryEmbedding rotary = config.getRotary();
        angles =
                rotary == null
                        ? new Angles(new double[0], 1, 0)
                        : new Angles(
                                rotary.getFrequencies(dim, 1),
                                rotary.getAttentionFactor(),
                                positions);
        x = new float[most * width];
        y = new float[most * width];
        projected = new float[most * stride];
        mixed = new float[most * heads * dim];
        raised = new float[most * hidden * (config.isGated() ? 2 : 1)];
        activated = new float[most * hidden];
    }

    private long hiddenOf(Communicator ranks) {
        return (config.getHiddenFeatures() + ranks.getSize() - 1) / ranks.getSize();
    }

    /** Returns the memory of weights and cache. */
    long bytes() {
        return weights.bytes() + cache.getBytes();
    }

    String kernel() {
        return weights.head.getKernel();
    }

    /** Computes a step, and chooses the tokens that are asked for: the same on all ranks. */
    DecoderStep.Choice[] choose(DecoderStep step) throws IOException {
        DecoderStep.Choice[] choices = new DecoderStep.Choice[step.asked()];
        step.copies().forEach(this::copy);
        compute(step);
        int own = (int) weights.ids.length();
        for (int i = 0; i < choices.length; i++) {
            choices[i] = sampler.choose(logits, i * own, step.sampling(i));
        }
        return choices;
    }

    private void copy(DecoderStep.Copy copy) {
        float[] token = new float[2 * keyHeads * dim];
        for (int i = 0; i < config.getLayers(); i++) {
            for (int t = 0; t < copy.tokens(); t++) {
                cache.get(i, copy.from(), t, token);
                cache.put(i, copy.to(), t, token, 0);
            }
        }
    }

    /** Returns the normalized features of the tokens that the last step asked for. */
    float[] features(int asked) {
        return Arrays.copyOf(y, asked * width);
    }

    /**
     * Copies the keys and values of tokens of a text into the cache, or out of it. A head that
     * several ranks have is copied out by the first of them.
     *
     * @param text the number of the text
     * @param from the position of the first token
     * @param tokens how many tokens
     * @param all keys and values of each layer in turn, [heads of the model, room, d]
     * @param offset where the first token of the first head is
     * @param room how many tokens the heads are apart
     * @param into whether they go into the cache
     */
    void copy(int text, int from, int tokens, float[][] all, int offset, int room, boolean into) {
        float[] token = new float[2 * keyHeads * dim];
        int first = (int) weights.keyHeads.start();
        int sharing = config.getHeads() / config.getKeyValueHeads();
        boolean shares = first * sharing < weights.queryHeads.start();
        for (int i = 0; i < config.getLayers(); i++) {
            for (int t = 0; t < tokens; t++) {
                if (!into) {
                    cache.get(i, text, from + t, token);
                }
                for (int h = 0; h < 2 * keyHeads; h++) {
                    float[] array = all[2 * i + h / keyHeads];
                    int at = offset + ((first + h % keyHeads) * room + t) * dim;
                    if (into) {
                        System.arraycopy(array, at, token, h * dim, dim);
                    } else if (!shares || h % keyHeads > 0) {
                        System.arraycopy(token, h * dim, array, at, dim);
                    }
                }
                if (into) {
                    cache.put(i, text, from + t, token, 0);
                }
            }
        }
    }

    private void compute(DecoderStep step) throws IOException {
        int count = step.count();
        Arrays.fill(x, 0, count * width, 0);
        for (int i = 0; i < count; i++) {
            weights.embedding.add(step.row(i).id(), x, i * width);
            if (weights.positions != null) {
                weights.positions.add(step.row(i).position(), x, i * width);
            }
        }
        for (int i = 0; i < config.getLayers(); i++) {
            RankWeights.Layer layer = weights.layers.get(i);
            normalize(layer.attentionNorm(), x, y, count);
            layer.queryKeyValue().multiply(y, count, projected);
            attend(i, layer, step);
            layer.output().multiply(mixed, count, y);
            addSum(count);
            normalize(layer.mlpNorm(), x, y, count);
            layer.hidden().multiply(y, count, raised);
            activation.apply(buffer, raised, count, hidden, config.isGated(), activated);
            layer.down().multiply(activated, count, y);
            addSum(count);
        }
        int asked = step.asked();
        if (asked == 0) {
            return;
        }
        for (int i = 0; i < asked; i++) {
            int row = step.askedRow(i); // rows go up: nothing is overwritten that is needed
            System.arraycopy(x, row * width, x, i * width, width);
        }
        normalize(weights.norm, x, y, asked);
        int size = asked * weights.head.getOutputs();
        if (logits.length < size) {
            logits = new float[size];
        }
        weights.head.multiply(y, asked, logits);
    }

    private void addSum(int count) {
        group.sum(y, count * width);
        for (int i = 0; i < count * width; i++) {
            x[i] += y[i];
        }
    }

    private void attend(int number, RankWeights.Layer layer, DecoderStep step) {
        int count = step.count();
        int window = config.getSlidingWindow(number);
        RotaryEmbedding rotary = config.getRotary(number);
        for (int i = 0; i < count; i++) {
            int at = i * stride;
            for (int h = 0; h < heads + keyHeads; h++) {
                RankWeights.Norm norm = h < heads ? layer.queryNorm() : layer.keyNorm();
                if (norm != null) {
                    normalize(norm, projected, projected, at + h * dim, dim);
                }
            }
            DecoderStep.Row row = step.row(i);
            int position = row.position();
            if (rotary != null) {
                int length = row.length();
                Angles own = rotary.isScaledBy(length) ? scaledAngles(rotary, length) : angles;
                for (int h = 0; h < heads + keyHeads; h++) {
                    rotate(at + h * dim, position, own);
                }
            }
            for (int j = at; j < at + heads * dim; j++) {
                projected[j] *= scale;
            }
            cache.put(number, row.text(), position, projected, at + heads * dim);
        }
        int from = 0;
        for (int i = 1; i <= count; i++) {
            DecoderStep.Row first = step.row(from);
            if (i == count || step.row(i).text() != first.text()) {
                cache.attend(
                        number,
                        first.text(),
                        first.position(),
                        i - from,
                        window,
                        projected,
                        from * stride,
                        stride,
                        mixed,
                        from * heads * dim);
                from = i;
            }
        }
    }

    private Angles scaledAngles(RotaryEmbedding scaled, int length) {
        Angles known = scaledAngles;
        if (known == null || scaled.isScaledBetween(scaledLength, length)) {
            double[] frequencies = scaled.getFrequencies(dim, length);
            known = new Angles(frequencies, scaled.getAttentionFactor(), positions);
            scaledAngles = known;
            scaledLength = length;
        }
        return known;
    }

    private void rotate(int at, int position, Angles own) {
        int half = own.pairs;
        int table = position * half;
        for (int j = 0; j < half; j++) {
            float a = projected[at + j];
            float b = projected[at + half + j];
            float cosine = own.cosines[table + j];
            float sine = own.sines[table + j];
            projected[at + j] = a * cosine - b * sine;
            projected[at + half + j] = b * cosine + a * sine;
        }
    }

    private void normalize(RankWeights.Norm norm, float[] from, float[] to, int count) {
        for (int i = 0; i < count; i++) {
            normalize(norm, from, to, i * width, width);
        }
    }

    private void normalize(RankWeights.Norm norm, float[] from, float[] to, int at, int length) {
        float[] weight = norm.weight();
        float[] bias = norm.bias();
        double mean = 0;
        if (bias != null) {
            for (int j = at; j < at + length; j++) {
                mean += from[j];
            }
            mean /= length;
        }
        double sum = 0;
        for (int j = at; j < at + length; j++) {
            double difference = from[j] - mean;
            sum += difference * difference;
        }
        float factor = (float) (1 / Math.sqrt(sum / length + config.getEpsilon()));
        float middle = (float) mean;
        for (int j = 0; j < length; j++) {
            to[at + j] = (from[at + j] - middle) * factor * weight[j];
        }
        if (bias != null) {
            for (int j = 0; j < length; j++) {
                to[at + j] += bias[j];
            }
        }
    }

    @Override
    public void close() {
        weights.close();
        cache.close();
        group.close();
        buffer.close();
    }
}
