package io.djltp.examples.generate;

import static io.djltp.examples.train.DeviceOptions.positive;

import ai.djl.MalformedModelException;

import io.djltp.examples.BadInputException;
import io.djltp.examples.train.DeviceOptions;
import io.djltp.job.Job;
import io.djltp.llm.Generator;
import io.djltp.llm.LanguageModel;
import io.djltp.llm.WeightType;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.ITypeConverter;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;
import picocli.CommandLine.TypeConversionException;

import java.io.IOException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Locale;

/** Which model {@link GenerateCommand} and {@link ServeCommand} run, and how ranks hold it. */
final class ModelOptions {

    @Parameters(paramLabel = "FOLDER", description = "The folder of the model.")
    Path folder;

    @Option(
            names = "--tp",
            description =
                    "Number of ranks of all processes (one for each processor, or for each"
                            + " process that a launcher has started).")
    @Nullable Integer tp;

    @Option(
            names = "--threads",
            defaultValue = "1",
            description =
                    "Threads of a rank (${DEFAULT-VALUE}). Use more only with fewer ranks than"
                            + " processors: threads of a rank wait for each other at each"
                            + " operation, which is slow while other programs compute.")
    int threads;

    @Option(
            names = "--weights",
            defaultValue = "float32",
            converter = WeightTypes.class,
            description =
                    "How weights are held: float32, bfloat16, float16, int8 or int4"
                            + " (${DEFAULT-VALUE}).")
    WeightType weights;

    @Option(
            names = "--adapter",
            paramLabel = "FOLDER",
            description =
                    "A folder of LoRA adapters in PEFT's files, which are added to the weights.")
    @Nullable Path adapter;

    @Option(
            names = "--length",
            description =
                    "The most tokens of prompt and text, for which the cache has room (the"
                            + " positions of the model, at most 2048).")
    @Nullable Integer length;

    @Mixin DeviceOptions where = new DeviceOptions();

    /** Checks what can be checked before the model is opened. */
    void check() {
        where.check();
        positive("--tp", tp);
        positive("--threads", threads);
        positive("--length", length);
    }

    LanguageModel open() {
        LanguageModel.Builder builder = LanguageModel.builder(folder);
        try {
            return (adapter == null ? builder : builder.optAdapter(adapter)).load();
        } catch (IOException | MalformedModelException e) {
            throw new BadInputException(e.getMessage(), e);
        }
    }

    /** Returns the number of ranks of all processes, where it is not given one per processor. */
    int ranks(LanguageModel model) {
        int heads = model.getConfig().getHeads();
        int ranks =
                tp == null && DeviceOptions.processes() == 1
                        ? Math.min(Runtime.getRuntime().availableProcessors(), heads)
                        : DeviceOptions.ranks(tp);
        DeviceOptions.checkShared(ranks, "--tp " + ranks + " ranks");
        return ranks;
    }

    ParallelConfig config(@Nullable Job job, int ranks) {
        DeviceMesh mesh = DeviceMesh.of(ParallelMode.TENSOR, ranks);
        return where.config(job, mesh).optThreadsPerRank(threads).build();
    }

    Generator.Builder generator(LanguageModel model, ParallelConfig config) {
        Generator.Builder builder =
                Generator.builder().setModel(model).optConfig(config).optWeights(weights);
        return length == null ? builder : builder.optMaxLength(length);
    }

    /** Reads the name of a type of weights. */
    private static final class WeightTypes implements ITypeConverter<WeightType> {

        @Override
        public WeightType convert(String value) {
            try {
                return WeightType.of(value.toLowerCase(Locale.ROOT));
            } catch (IllegalArgumentException e) {
                throw new TypeConversionException(
                        "expected one of %s but was '%s'"
                                .formatted(Arrays.toString(WeightType.values()), value));
            }
        }
    }
}
