package io.djltp.llm;

import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;

import com.google.gson.GsonBuilder;

import io.djltp.cut.ShardRange;
import io.djltp.exchange.NameMapping;
import io.djltp.exchange.PretrainedWeights;
import io.djltp.exchange.WeightExport;
import io.djltp.internal.Errors;
import io.djltp.internal.safetensors.SafetensorsFile;
import io.djltp.internal.safetensors.SafetensorsFolder;
import io.djltp.nn.LoraConfig;

import org.jspecify.annotations.Nullable;

import java.io.Closeable;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.TreeSet;

/**
 * The adapters of a network, new ones or those of a folder of PEFT: {@code adapter_config.json} and
 * {@code adapter_model.safetensors}.
 */
final class Adapter implements Closeable {

    /** The paths of the adapters' own parameters. */
    static final String PARAMETERS = "{path}.lora.*";

    private static final String CONFIG = "adapter_config.json";
    private static final String WEIGHTS = "adapter_model";
    private static final String PREFIX = "base_model.model.";
    private static final String WEIGHT = ".weight";

    private final LoraConfig config;
    private final List<String> modules; // by Hugging Face's names
    private final String prefix; // before them, where a model has a head
    private final NameMapping mapping;
    private final @Nullable PretrainedWeights weights; // or null: new ones
    private final @Nullable SafetensorsFolder files;

    private Adapter(LoraConfig config, @Nullable Path folder, Block network, ModelFamily family)
            throws IOException {
        this.config = config;
        prefix = family.prefix();
        NameMapping base = family.mapping();
        Map<String, List<String>> layers = new LinkedHashMap<>(); // names by path
        Map<Parameter, List<String>> names = new HashMap<>(); // by weight
        Map<String, Parameter> paths = NameMapping.paths(network);
        paths.forEach(
                (path, parameter) -> {
                    if (path.endsWith(WEIGHT) && !path.equals("lm_head.weight")) {
                        List<String> own =
                                base.getTensors(path, paths.keySet()).stream()
                                        .map(Adapter::withoutWeight)
                                        .toList();
                        layers.put(withoutWeight(path), own);
                        names.put(parameter, own);
                    }
                });
        Map<Block, List<String>> blocks = new HashMap<>();
        find(network, names, blocks);
        modules = config.addTo(network, blocks);
        layers.values().removeIf(own -> !modules.containsAll(own));
        StringBuilder table = new StringBuilder();
        layers.forEach(
                (path, own) -> {
                    for (String factor : List.of("A", "B")) {
                        List<String> tensors = own.stream().map(n -> tensor(n, factor)).toList();
                        table.append(path).append(".lora.").append(factor).append(" = ");
                        table.append(String.join(" + ", tensors)).append('\n');
                    }
                });
        mapping = NameMapping.parse(table.toString());
        Path file = folder == null ? null : folder.resolve(WEIGHTS + SafetensorsFolder.SUFFIX);
        files = file == null ? null : SafetensorsFolder.open(file);
        weights =
                file == null
                        ? null
                        : PretrainedWeights.builder()
                                .setPath(file)
                                .setMapping(mapping)
                                .optSkipParameters(paths.keySet().toArray(String[]::new))
                                .build();
    }

    private static void find(
            Block block, Map<Parameter, List<String>> names, Map<Block, List<String>> found) {
        block.getDirectParameters().values().stream()
                .filter(names::containsKey)
                .forEach(weight -> found.put(block, names.getOrDefault(weight, List.of())));
        block.getChildren().values().forEach(child -> find(child, names, found));
    }

    private static String withoutWeight(String name) {
        return name.endsWith(WEIGHT) ? name.substring(0, name.length() - WEIGHT.length()) : name;
    }

    private static String tensor(String module, String factor) {
        return PREFIX + module + ".lora_" + factor + WEIGHT;
    }

    /** Adds new adapters to the network of a model. */
    static Adapter of(LoraConfig config, Model model, ModelFamily family) throws IOException {
        return new Adapter(config, null, model.getBlock(), family);
    }

    /** Adds the adapters of a folder to the network of a model. */
    static Adapter read(Path folder, Model model, ModelFamily family)
            throws IOException, MalformedModelException {
        ConfigFields fields = ConfigFields.read(folder.resolve(CONFIG));
        boolean transposed = family.is(ModelFamily.Trait.TRANSPOSED);
        try {
            return new Adapter(fields.lora(transposed), folder, model.getBlock(), family);
        } catch (IllegalArgumentException e) {
            throw fields.malformed("%s", e.getMessage());
        }
    }

    /**
     * Lets the network read the values of a folder, when it is initialized.
     *
     * @param model the model
     * @param probe the shape of an input
     * @throws MalformedModelException if the tensors are not those of such adapters
     */
    void bind(Model model, Shape probe) throws IOException, MalformedModelException {
        if (weights != null) {
            weights.bind(model, probe);
        }
    }

    /**
     * Checks that a generator can read the values.
     *
     * @throws IllegalArgumentException if they are in no file
     */
    void checkSaved() {
        Errors.check(
                files != null,
                "The adapters are new, and in no file: save them (saveAdapter), and load the model"
                        + " with optAdapter");
    }

    /**
     * Returns a part of a weight with that of its update.
     *
     * @param name the name of the weight in its file
     * @param part the part, [out, in] in float32
     * @param cutInputs whether it is a part of the inputs, or else of the outputs
     * @param ranges the part
     * @return the sum, or the part itself of a weight without an adapter
     */
    NDArray merged(String name, NDArray part, boolean cutInputs, List<ShardRange> ranges)
            throws IOException {
        String module = withoutWeight(name);
        module = modules.contains(module) ? module : prefix + module; // as PEFT names it
        if (!name.endsWith(WEIGHT) || !modules.contains(module)) {
            return part;
        }
        try (NDManager scope = part.getManager().newSubManager()) {
            NDArray a = read(tensor(module, "A"), cutInputs ? 1 : 0, cutInputs, ranges, scope);
            NDArray b = read(tensor(module, "B"), 0, !cutInputs, ranges, scope);
            NDArray update = b.matMul(a).mul(config.getScale());
            NDArray sum = part.add(update);
            sum.attach(part.getManager());
            return sum;
        }
    }

    private NDArray read(
            String name, int axis, boolean cut, List<ShardRange> ranges, NDManager manager)
            throws IOException {
        SafetensorsFile file = Objects.requireNonNull(files).fileOf(name);
        NDArray array = cut ? file.read(name, axis, ranges, manager) : file.read(name, manager);
        return array.toType(DataType.FLOAT32, false);
    }

    /** Writes the adapters as PEFT does. */
    void save(Block network, Path target, DataType type, ModelConfig model, Path base)
            throws IOException {
        WeightExport.builder()
                .setMapping(mapping)
                .optName(WEIGHTS)
                .optFileBytes(Long.MAX_VALUE)
                .optDataType(type)
                .optAdapters(true)
                .build()
                .write(network, target);
        Map<String, @Nullable Object> fields = new LinkedHashMap<>();
        fields.put("peft_type", "LORA");
        fields.put("task_type", model.isEncoder() ? "FEATURE_EXTRACTION" : "CAUSAL_LM");
        fields.put("base_model_name_or_path", base.toString());
        fields.put("r", config.getRank());
        boolean whole = config.getAlpha() == (int) config.getAlpha(); // as in most files
        fields.put("lora_alpha", whole ? (Number) (int) config.getAlpha() : config.getAlpha());
        fields.put("lora_dropout", config.getDropout());
        fields.put("use_rslora", config.isRankStabilized());
        String pattern = config.getTargetPattern();
        fields.put("target_modules", pattern == null ? words() : pattern);
        fields.put("fan_in_fan_out", model.family().is(ModelFamily.Trait.TRANSPOSED));
        fields.put("bias", "none");
        fields.put("inference_mode", true);
        fields.put("init_lora_weights", true);
        String text = new GsonBuilder().setPrettyPrinting().create().toJson(fields);
        Files.writeString(target.resolve(CONFIG), text + "\n");
    }

    /** Returns the targets: the last words of all names, where they are not given. */
    private Collection<String> words() {
        List<String> given = config.getTargets();
        return given.isEmpty() || given.contains(LoraConfig.ALL_LINEAR)
                ? new TreeSet<>(
                        modules.stream().map(n -> n.substring(n.lastIndexOf('.') + 1)).toList())
                : given;
    }

    @Override
    public void close() {
        try (files;
                weights) {
            // the last one first
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
