package io.djltp.examples.plan;

import io.djltp.examples.BadInputException;
import io.djltp.llm.GenerationMemory;
import io.djltp.llm.WeightType;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.ToLongFunction;

/** What a rank keeps and reads where a decoder generates, for each type of weights. */
final class GenerationCost {

    private final int batch;
    private final int context;
    private final Map<WeightType, List<GenerationMemory>> ranks = new LinkedHashMap<>();

    GenerationCost(PlanOptions options, PlanReport report) {
        batch = report.batch();
        context = options.context();
        for (WeightType type : WeightType.values()) {
            BadInputException.check(
                    "",
                    () ->
                            ranks.put(
                                    type,
                                    GenerationMemory.of(
                                            options.config(),
                                            type,
                                            report.tensorSize(),
                                            batch,
                                            context)));
        }
    }

    private static List<Long> bytes(
            List<GenerationMemory> ranks, ToLongFunction<GenerationMemory> of) {
        return ranks.stream().mapToLong(of).boxed().toList();
    }

    void addTo(Map<String, Object> figures) {
        figures.put(
                "cache_bytes", bytes(ranks.values().iterator().next(), GenerationMemory::cache));
        Map<String, Object> weights = new LinkedHashMap<>();
        ranks.forEach((type, all) -> weights.put("" + type, bytes(all, GenerationMemory::weights)));
        figures.put("token_bytes", weights);
    }

    private static String range(List<GenerationMemory> ranks, ToLongFunction<GenerationMemory> of) {
        String least = Sizes.bytes(ranks.stream().mapToLong(of).min().orElse(0));
        String most = Sizes.bytes(ranks.stream().mapToLong(of).max().orElse(0));
        return least.equals(most) ? most : least + " to " + most;
    }

    /** Returns a line for each type. */
    @Override
    public String toString() {
        StringBuilder lines = new StringBuilder();
        lines.append(
                String.format(
                        Locale.ROOT,
                        "%ngeneration, %d x %,d tokens at most; a step reads the weights once and"
                                + " what is filled of the cache%n%-9s %20s %20s %20s  of a rank",
                        batch,
                        context,
                        "weights",
                        "weights",
                        "cache",
                        "all"));
        ranks.forEach(
                (type, all) ->
                        lines.append(
                                String.format(
                                        Locale.ROOT,
                                        "%n%-9s %20s %20s %20s",
                                        type,
                                        range(all, GenerationMemory::weights),
                                        range(all, GenerationMemory::cache),
                                        range(all, each -> each.weights() + each.cache()))));
        return lines.toString();
    }
}
