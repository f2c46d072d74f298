package io.djltp.exchange;

import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;

import io.djltp.internal.files.SideFolder;
import io.djltp.internal.safetensors.SafetensorsWriter;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/**
 * The files of a model: written in a folder of their own beside those that are there, whose place
 * they take when all are complete.
 *
 * @param folder the folder
 * @param name how their names begin
 * @param most the bytes of the tensors of a file, but of a single one
 * @param overwrite whether they take the place of others
 */
record OutputFiles(Path folder, String name, long most, boolean overwrite) {

    private static final String SUFFIX = ".safetensors";

    /** Writes tensors, and returns the file or the index. */
    Path write(List<OutputTensor> tensors) throws IOException {
        boolean created = createFolder();
        if (!overwrite) {
            checkNone(older());
        }
        boolean written = false;
        try (SideFolder side = SideFolder.in(folder)) {
            List<List<OutputTensor>> files = shareOut(tensors);
            JsonObject map = new JsonObject();
            for (int i = 0; i < files.size(); i++) {
                String file = fileName(i, files.size());
                write(files.get(i), side.resolve(file));
                files.get(i).forEach(tensor -> map.addProperty(tensor.name(), file));
            }
            String index = name + WeightFiles.INDEX;
            if (files.size() > 1) {
                writeIndex(tensors, map, side.resolve(index));
            }
            removeOlder(side.replace(index));
            written = true;
            return folder.resolve(files.size() > 1 ? index : name + SUFFIX);
        } catch (IOException e) {
            throw SideFolder.explained(folder, e);
        } finally {
            if (created && !written) {
                Files.delete(folder); // it is empty
            }
        }
    }

    /** Returns whether there was none. */
    private boolean createFolder() throws IOException {
        if (Files.exists(folder) && !Files.isDirectory(folder)) {
            throw new FileAlreadyExistsException(
                    folder.toString(),
                    null,
                    "it is a file, and the weights go to a folder. Name one, new or not");
        }
        boolean none = !Files.exists(folder);
        Files.createDirectories(folder);
        return none;
    }

    private List<List<OutputTensor>> shareOut(List<OutputTensor> tensors) {
        List<List<OutputTensor>> files = new ArrayList<>();
        long bytes = 0;
        for (OutputTensor tensor : tensors) {
            if (files.isEmpty() || bytes + tensor.bytes() > most) {
                files.add(new ArrayList<>());
                bytes = 0;
            }
            files.get(files.size() - 1).add(tensor);
            bytes += tensor.bytes();
        }
        return files;
    }

    private String fileName(int number, int count) {
        return count == 1
                ? name + SUFFIX
                : String.format(Locale.ROOT, "%s-%05d-of-%05d%s", name, number + 1, count, SUFFIX);
    }

    /** Writes tensors to a new file. */
    private static void write(List<OutputTensor> tensors, Path file) throws IOException {
        SafetensorsWriter.Builder builder =
                SafetensorsWriter.builder().optMetadata("format", "pt"); // as PyTorch names them
        for (OutputTensor each : tensors) {
            builder.addTensor(each.name(), each.type(), each.shape());
            MarginNote.write(each, builder);
        }
        try (FileChannel channel =
                        FileChannel.open(
                                file, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
                SafetensorsWriter writer = builder.build(channel)) {
            for (OutputTensor tensor : tensors) {
                tensor.write(writer::write);
            }
            writer.finish();
            channel.force(true);
        }
    }

    private static void writeIndex(List<OutputTensor> tensors, JsonObject map, Path file)
            throws IOException {
        JsonObject metadata = new JsonObject();
        metadata.addProperty("total_size", tensors.stream().mapToLong(OutputTensor::bytes).sum());
        JsonObject index = new JsonObject();
        index.add("metadata", metadata);
        index.add("weight_map", map);
        String text = new GsonBuilder().setPrettyPrinting().create().toJson(index);
        Files.writeString(file, text + "\n");
    }

    /** Refuses to write where there is a file. */
    static void checkNone(List<Path> files) throws FileAlreadyExistsException {
        for (Path file : files) {
            if (Files.exists(file)) {
                throw new FileAlreadyExistsException(
                        file.toString(),
                        null,
                        "there are weights already, and nothing is written. Choose another folder"
                                + " or name, or let them be replaced (optOverwrite(true),"
                                + " --overwrite)");
            }
        }
    }

    /** Removes what is of an older set. */
    private void removeOlder(List<String> names) throws IOException {
        for (Path file : older()) {
            if (!names.contains(file.getFileName().toString())) {
                Files.delete(file);
            }
        }
    }

    /** Returns the files of these names that are there. */
    private List<Path> older() throws IOException {
        Pattern own =
                Pattern.compile(
                        Pattern.quote(name)
                                + "(-\\d{5}-of-\\d{5})?\\.safetensors(\\.index\\.json)?");
        try (Stream<Path> files = Files.list(folder)) {
            return files.filter(file -> own.matcher(file.getFileName().toString()).matches())
                    .sorted()
                    .toList();
        }
    }
}
