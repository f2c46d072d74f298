package io.djltp.examples.lemma;

import ai.djl.MalformedModelException;

import io.djltp.examples.BadInputException;
import io.djltp.exchange.OnnxExport;

import picocli.CommandLine.Command;
import picocli.CommandLine.Option;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import java.util.concurrent.Callable;

/** Writes a trained lemmatiser as the files of others. */
@Command(
        name = "export",
        description =
                "Writes the trained model of ./tp train as an ONNX file, as safetensors, or both.",
        mixinStandardHelpOptions = true)
public final class ExportCommand implements Callable<Integer> {

    @Option(
            names = "--model",
            defaultValue = "out/lemma",
            description = "Folder of the trained model (${DEFAULT-VALUE}).")
    private Path model;

    @Option(names = "--onnx", description = "The ONNX file to write.")
    private Path onnx;

    @Option(
            names = "--safetensors",
            description = "The folder to write lemma.safetensors to, with PyTorch's names.")
    private Path safetensors;

    /** Creates the command; its options are set by the command line. */
    public ExportCommand() {}

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException, MalformedModelException {
        if (onnx == null && safetensors == null) {
            throw new BadInputException("Say what to write: --onnx FILE, --safetensors FOLDER");
        }
        if (onnx != null && onnx.toAbsolutePath().getParent() != null) {
            Files.createDirectories(onnx.toAbsolutePath().getParent());
        }
        try (SavedModel saved = SavedModel.load(model)) {
            if (safetensors != null) {
                LemmaWeights.write(saved.getModel(), safetensors);
                System.out.println("The weights are in " + safetensors);
            }
            if (onnx != null) {
                LemmaOnnx.write(saved, onnx);
                System.out.printf(
                        Locale.ROOT,
                        "The model is in %s, opset %d: ngrams int32 [batch, %d] in, logits [batch,"
                                + " %d] out%n",
                        onnx,
                        OnnxExport.OPSET,
                        saved.getNGrams().limit(),
                        saved.getLexicon().size());
            }
        }
        return 0;
    }
}
