package io.djltp.llm;

import io.djltp.cut.Cut;
import io.djltp.internal.decode.KeyValueCache;
import io.djltp.internal.decode.PackedWeight;
import io.djltp.sharding.AxisPart;

import java.util.List;
import java.util.function.LongBinaryOperator;
import java.util.stream.IntStream;

/**
 * The memory of a rank of a {@link Generator}, computed from the sizes of a model alone. Biases and
 * norms are left out.
 *
 * @param weights the bytes of the weights, all of which a step reads
 * @param cache the bytes of the keys and values, which a step reads as far as they are filled
 * @param buffers the bytes of the rows of a step and of their mask
 */
public record GenerationMemory(long weights, long cache, long buffers) {

    /**
     * Computes the memory of each rank.
     *
     * @param config the sizes of a decoder
     * @param type the type of the weights
     * @param ranks the number of ranks
     * @param batch the texts at a time
     * @param length the tokens of a text, prompt and new ones together
     * @return the memory of each rank, in their order
     * @throws IllegalArgumentException if there are more ranks than query heads, hidden features or
     *     token ids
     */
    public static List<GenerationMemory> of(
            ModelConfig config, WeightType type, int ranks, int batch, int length) {
        RankWeights.checkRanks(config, ranks);
        Cut heads = Cut.balanced(config.getHeads(), ranks);
        Cut keys =
                AxisPart.keyValueHeads(config.getHeads(), config.getKeyValueHeads(), 1).cut(ranks);
        Cut hidden = Cut.balanced(config.getHiddenFeatures(), ranks);
        Cut ids = Cut.balanced(config.getVocabularySize(), ranks);
        long layers = config.getLayers();
        long width = config.getWidth();
        long dim = config.getHeadDim();
        long tokens = KeyValueCache.steps(length);
        long rows = Math.max(Generator.ROWS, batch);
        LongBinaryOperator bytes = type.type()::getBytes;
        return IntStream.range(0, ranks)
                .mapToObj(
                        i -> {
                            long query = heads.getRange(i).length() * dim;
                            long key = keys.getRange(i).length() * dim;
                            long features = hidden.getRange(i).length();
                            long up = config.isGated() ? 2 * features : features;
                            long layer =
                                    bytes.applyAsLong(query + 2 * key, width)
                                            + bytes.applyAsLong(width, query)
                                            + bytes.applyAsLong(up, width)
                                            + bytes.applyAsLong(width, features);
                            long head = bytes.applyAsLong(ids.getRange(i).length(), width);
                            long widest = Math.max(width, Math.max(query, features));
                            long room = PackedWeight.roomFor(rows, widest);
                            return new GenerationMemory(
                                    layers * layer + head,
                                    2L * Float.BYTES * layers * batch * tokens * key,
                                    Float.BYTES * (room + rows * (width + length)));
                        })
                .toList();
    }
}
