package io.djltp.examples.plan;

import ai.djl.nn.Parameter;

import io.djltp.cost.ModelCost.ParameterCost;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.examples.BadInputException;
import io.djltp.llm.ModelConfig;

import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.stream.IntStream;

/** What a rank keeps and reads where a decoder generates, with weights and cache in float32. */
final class GenerationCost {

    private final int batch;
    private final int tokens;
    private final List<Long> caches; // of the ranks of a group
    private final List<Long> reads;

    GenerationCost(PlanOptions options, PlanReport report) {
        ModelConfig config = options.config();
        batch = report.batch();
        tokens = options.tokens;
        int ranks = report.tensorSize();
        BadInputException.check("", () -> Cut.balanced(config.getHeads(), ranks));
        Cut heads = Cut.balanced(config.getHeads(), ranks);
        caches = IntStream.range(0, ranks).mapToObj(i -> cache(config, heads, i)).toList();
        reads = IntStream.range(0, ranks).mapToObj(i -> read(config, report, i)).toList();
    }

    /** Returns the bytes of keys and values, of those heads that a rank's query heads use. */
    private long cache(ModelConfig config, Cut heads, int rank) {
        ShardRange own = heads.getRange(rank);
        long sharing = config.getHeads() / config.getKeyValueHeads();
        long used = (own.end() - 1) / sharing - own.start() / sharing + 1;
        return 2L * Float.BYTES * config.getLayers() * batch * tokens * used * config.getHeadDim();
    }

    /** Returns the bytes of the weights that every token is multiplied with. */
    private static long read(ModelConfig config, PlanReport report, int rank) {
        long all = 0;
        Set<Parameter> seen = new HashSet<>(); // a head that is the embedding counts once
        for (ParameterCost each : report.cost().getParameters()) {
            boolean lookedUp = each.name().contains("embed_tokens") && !config.isTied();
            boolean used = !lookedUp && !each.name().contains("positions");
            if (used && seen.add(each.parameter())) {
                all += each.getShape(rank).size() * Float.BYTES;
            }
        }
        return all;
    }

    void addTo(Map<String, Object> figures) {
        figures.put("cache_bytes", caches);
        figures.put("token_bytes", reads);
    }

    private static String range(List<Long> bytes) {
        String least = Sizes.bytes(bytes.stream().mapToLong(each -> each).min().orElse(0));
        String most = Sizes.bytes(bytes.stream().mapToLong(each -> each).max().orElse(0));
        return least.equals(most) ? most : least + " to " + most;
    }

    /** Returns two lines. */
    @Override
    public String toString() {
        return String.format(
                Locale.ROOT,
                "%ngeneration: the cache of %d x %,d tokens takes a rank %s,%n"
                        + "and each token reads %s of its weights",
                batch,
                tokens,
                range(caches),
                range(reads));
    }
}
