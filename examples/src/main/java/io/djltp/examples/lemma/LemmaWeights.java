package io.djltp.examples.lemma;

import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.ndarray.types.Shape;

import io.djltp.exchange.NameMapping;
import io.djltp.exchange.PretrainedWeights;
import io.djltp.exchange.WeightExport;
import io.djltp.parameters.DjlFormat;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.FileTime;
import java.util.stream.Stream;

/** The parameters of a lemmatiser as safetensors: {@code embedding.weight}, {@code head.weight}. */
public final class LemmaWeights {

    private static final String FILE = SavedModel.NAME + ".safetensors";

    /** The head is a linear layer of another class while it is trained. */
    private static final NameMapping NAMES =
            NameMapping.parse(
                    """
                    EmbeddingBag.embedding = embedding.weight
                    *.weight               = head.weight
                    *.bias                 = head.bias
                    """);

    private LemmaWeights() {}

    /** Returns whether DJL's format can hold the parameters. */
    static boolean fitDjl(Model model) {
        return model.getBlock().getParameters().values().stream()
                .allMatch(each -> each.getShape().size() * Float.BYTES <= DjlFormat.LIMIT);
    }

    /**
     * Writes the parameters.
     *
     * @param model the model
     * @param folder the folder
     * @param overwrite whether a file of the name is replaced
     * @throws IOException if they cannot be written, or the file is there
     */
    public static void write(Model model, Path folder, boolean overwrite) throws IOException {
        WeightExport.builder()
                .setMapping(NAMES)
                .optName(SavedModel.NAME)
                .optFileBytes(Long.MAX_VALUE)
                .optOverwrite(overwrite)
                .build()
                .write(model.getBlock(), folder);
    }

    /** Returns whether a folder has parameters of this kind, and none of DJL's that are newer. */
    static boolean areNewest(Path folder) throws IOException {
        if (!Files.exists(folder.resolve(FILE))) {
            return false;
        }
        FileTime own = Files.getLastModifiedTime(folder.resolve(FILE));
        try (Stream<Path> files = Files.list(folder)) {
            for (Path file : files.filter(each -> each.toString().endsWith(".params")).toList()) {
                if (Files.getLastModifiedTime(file).compareTo(own) > 0) {
                    return false;
                }
            }
        }
        return true;
    }

    /** Reads the parameters. */
    static void read(Model model, Path folder, int places)
            throws IOException, MalformedModelException {
        try (PretrainedWeights weights =
                PretrainedWeights.builder()
                        .setPath(folder.resolve(FILE))
                        .setMapping(NAMES)
                        .build()) {
            weights.load(model, new Shape(1, places));
        }
    }
}
