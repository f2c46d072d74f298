package io.djltp.examples.classes;

import io.djltp.classes.ClassModel;
import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;
import io.djltp.exchange.OnnxExport;

import picocli.CommandLine.Command;
import picocli.CommandLine.Option;

import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Path;
import java.util.Locale;
import java.util.concurrent.Callable;

/** Writes a trained classifier as the files of others. */
@Command(
        name = "export",
        description = "Writes the trained model of ./tp train, without --body, as an ONNX file.",
        mixinStandardHelpOptions = true)
public final class ExportCommand implements Callable<Integer> {

    @Option(
            names = "--model",
            defaultValue = "out/lemma",
            description = "Folder of the trained model (${DEFAULT-VALUE}).")
    private Path folder;

    @Option(names = "--onnx", required = true, description = "The ONNX file to write.")
    private Path onnx;

    @Option(names = "--overwrite", description = "Replace the file if it is there.")
    private boolean overwrite;

    /** Creates the command; its options are set by the command line. */
    public ExportCommand() {}

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException {
        JsonFile.check("--onnx", onnx);
        try (ClassModel model = Classifier.open(folder)) {
            OnnxExport.Builder export = BadInputException.check("", model::newOnnxExport);
            export.optOverwrite(overwrite).build().write(model.getModel(), onnx);
            System.out.printf(
                    Locale.ROOT,
                    "The model is in %s, opset %d: %s in, logits [batch, %d] out%n",
                    onnx,
                    OnnxExport.OPSET,
                    model.getTextFeatures() == null
                            ? "features [batch, " + model.getInputs() + "]"
                            : "ids int32 [batch, n]",
                    model.getClasses().size());
        } catch (FileAlreadyExistsException e) {
            throw new BadInputException(e.getMessage(), e);
        }
        return 0;
    }
}
