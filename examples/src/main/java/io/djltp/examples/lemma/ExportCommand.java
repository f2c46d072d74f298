package io.djltp.examples.lemma;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.examples.BadInputException;
import io.djltp.exchange.OnnxExport;
import io.djltp.nn.ClassificationHead;
import io.djltp.zoo.LemmaNetwork;
import io.djltp.zoo.ModelFolder;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.Command;
import picocli.CommandLine.Option;

import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import java.util.concurrent.Callable;

/** Writes a trained lemmatiser as the files of others. */
@Command(
        name = "export",
        description =
                "Writes the trained model of ./tp train as an ONNX file, or as a folder that DJL"
                        + " and DJL Serving load over any number of ranks.",
        mixinStandardHelpOptions = true)
public final class ExportCommand implements Callable<Integer> {

    @Option(
            names = "--model",
            defaultValue = "out/lemma",
            description = "Folder of the trained model (${DEFAULT-VALUE}).")
    private Path model;

    @Option(names = "--onnx", description = "The ONNX file to write.")
    private @Nullable Path onnx;

    @Option(
            names = "--serving",
            description =
                    "The folder to write for DJL's Criteria and DJL Serving: model.safetensors,"
                            + " serving.properties and the lemmas.")
    private @Nullable Path serving;

    @Option(
            names = "--overwrite",
            description = "Replace what --onnx and --serving name, if it is there.")
    private boolean overwrite;

    /** Creates the command; its options are set by the command line. */
    public ExportCommand() {}

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException, MalformedModelException {
        try {
            write();
        } catch (FileSystemException e) {
            String reason = e.getReason() == null ? e.getClass().getSimpleName() : e.getReason();
            throw new BadInputException(
                    "%s cannot be written (%s): name a place with write permission",
                    e.getFile(), reason);
        }
        return 0;
    }

    private void write() throws IOException, MalformedModelException {
        if (onnx == null && serving == null) {
            throw new BadInputException("Say what to write: --onnx FILE, --serving FOLDER");
        }
        if (serving != null) {
            checkServing(serving);
        }
        if (onnx != null) {
            writeOnnx(onnx);
        }
        if (serving != null) {
            writeFolder(serving);
            System.out.printf(
                    "The model folder is %s: DJL Serving takes it as it is, Criteria with"
                            + " optModelPath and optTranslatorFactory(new %s())%n",
                    serving, "LemmaNetwork.TranslatorFactory");
        }
    }

    /** Writes a model folder like the one that is in the jar of the library. */
    private void writeFolder(Path folder) throws IOException, MalformedModelException {
        // with the head of the block factory, which is what gives the weights their names
        try (SavedModel saved =
                SavedModel.load(
                        model, classes -> ClassificationHead.builder().setUnits(classes).build())) {
            saved.getLexicon().save(folder.resolve(LemmaNetwork.LABELS));
            ModelFolder.builder()
                    .setNetwork(saved.getModel().getBlock())
                    .setBlockFactory(LemmaNetwork.BlockFactory.class)
                    .optTranslatorFactory(LemmaNetwork.TranslatorFactory.class)
                    .optArgument("rows", "" + saved.getNGrams().rows())
                    .optArgument("limit", "" + saved.getNGrams().limit())
                    .optArgument("dim", "" + saved.getDim())
                    .optOverwrite(overwrite)
                    .build()
                    .save(folder);
        }
    }

    private void checkServing(Path folder) {
        Path properties = folder.resolve(ModelFolder.PROPERTIES);
        if (!overwrite && Files.exists(properties)) {
            throw new BadInputException(
                    "%s: there is a model folder already, and nothing is written. Choose another"
                            + " folder, or let it be replaced (--overwrite)",
                    properties);
        }
    }

    /**
     * Writes the lemmatiser as an ONNX file: {@code ngrams} in, int32 [batch, places], as
     * CharNGrams makes them; {@code logits} out, [batch, lemmas], in the order of the lexicon.
     */
    private void writeOnnx(Path file) throws IOException, MalformedModelException {
        Files.createDirectories(file.toAbsolutePath().getParent());
        try (SavedModel saved = SavedModel.load(model)) {
            int places = saved.getNGrams().limit();
            OnnxExport.builder()
                    .setInput("ngrams", DataType.INT32, new Shape(-1, places))
                    .optOutput("logits")
                    .optBlock(LemmaNetwork.NORMALIZE, ExportCommand::normalize)
                    .optOverwrite(overwrite)
                    .build()
                    .write(saved.getModel(), file);
            System.out.printf(
                    Locale.ROOT,
                    "The model is in %s, opset %d: ngrams int32 [batch, %d] in, logits [batch, %d]"
                            + " out%n",
                    file,
                    OnnxExport.OPSET,
                    places,
                    saved.getLexicon().size());
        } catch (FileAlreadyExistsException e) {
            throw new BadInputException(e.getMessage(), e);
        }
    }

    /** y = 16 x / sqrt(sum of x² + epsilon), row by row. */
    private static String normalize(OnnxExport.Graph graph, String x) {
        String axis = graph.integers(1);
        String squares = graph.add("ReduceSum", graph.add("Mul", x, x), axis);
        String sum = graph.add("Add", squares, graph.number(LemmaNetwork.EPSILON));
        String unit = graph.add("Div", x, graph.add("Sqrt", sum));
        return graph.add("Mul", unit, graph.number(LemmaNetwork.FEATURE_LENGTH));
    }
}
