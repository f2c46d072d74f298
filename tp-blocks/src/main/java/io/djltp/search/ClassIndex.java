package io.djltp.search;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;

import io.djltp.cut.ShardRange;
import io.djltp.head.TopClasses;
import io.djltp.internal.Errors;
import io.djltp.internal.files.SideFolder;
import io.djltp.internal.head.ClassCells;
import io.djltp.internal.safetensors.SafetensorsFile;
import io.djltp.internal.safetensors.SafetensorsWriter;
import io.djltp.internal.safetensors.StoredTensor;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.stream.IntStream;
import java.util.zip.CRC32;

/**
 * An index of the classes of a linear layer, by which a {@link ClassSearch} finds nearly all of the
 * best classes in a part of the time. Classes with similar rows of the weight are put into cells,
 * and a search computes the logits in the cells that promise most, with the weight itself. So the
 * logits are exact, but classes may be missed: how many of the 10 best are found is measured when
 * the index is built.
 *
 * <pre>{@code
 * ClassIndex index = ClassIndex.build(head, features); // of rows that were not trained on
 * System.out.println(index);
 * try (ClassSearch search = ClassSearch.of(head, index)) { ... }
 * }</pre>
 *
 * <p>How much is gained depends on the layer. Where similar classes have similar rows, a hundredth
 * of the classes is enough; where rows point anywhere, as those of random numbers do, there is no
 * gain. Searches of few rows gain most: an exact search of many rows reads the weight once for all.
 *
 * <p>Immutable, and safe to be shared by threads.
 */
public final class ClassIndex {

    private static final int BEST = 10; // classes of a row that are compared
    private static final double RECALL = 0.985; // of the rows that the number of cells comes from
    private static final int MOST_ROWS = 1024;
    private static final int TIMED = 31; // searches
    private static final int SAMPLE = 256; // rows of the weight that are kept to be compared
    private static final String VERSION = "1";
    private static final String REMEDY = "Build it anew: tp index, or ClassIndex.build";

    private final ClassCells cells;
    private final float[] sample;
    private final double recall;
    private final double share;
    private final double speedup;

    private ClassIndex(
            ClassCells cells, float[] sample, double recall, double share, double speedup) {
        this.cells = cells;
        this.sample = sample;
        this.recall = recall;
        this.share = share;
        this.speedup = speedup;
    }

    /**
     * Builds the index of a layer that has been trained or loaded. How many cells a search looks
     * into follows from half of the given rows, such that of their 10 best classes 0.985 are in
     * these cells; what is found and how fast is measured with the other half.
     *
     * @param layer the layer, as for {@link ClassSearch#of(Block)}
     * @param features the features of some rows like those that will be asked for, best not trained
     *     on, [rows, features]; at most 1,024 are used
     * @return the index
     * @throws IllegalArgumentException if the block is no linear layer, there are fewer than 2
     *     rows, or they do not fit the layer; or if a value of the layer is not finite
     * @throws IllegalStateException as {@link ClassSearch#of(Block)}
     */
    public static ClassIndex build(Block layer, NDArray features) {
        Shape shape = features.getShape();
        Errors.check(
                shape.dimension() == 2 && shape.get(0) > 1,
                "An index is built by the features of 2 rows or more, [rows, features], not %s",
                shape);
        int rows = (int) Math.min(shape.get(0), MOST_ROWS);
        try (ClassSearch search = ClassSearch.of(layer);
                NDManager manager = features.getManager().newSubManager()) {
            NDArray used = features.get("0:" + rows);
            used.attach(manager);
            NDArray odd = used.get("1::2");
            odd.attach(manager);
            NDArray even = used.get("0::2");
            even.attach(manager);
            int k = (int) Math.min(BEST, search.getClasses());
            ClassCells cells = search.cells(length(used));
            try (TopClasses best = search.topK(even, k)) {
                int[] places = cells.placesOf(even, best.classes());
                Arrays.sort(places);
                cells = cells.withProbes(1 + places[(int) Math.ceil(RECALL * places.length) - 1]);
            }
            ClassIndex unmeasured = new ClassIndex(cells, search.sampledRows(), 1, 1, 1);
            try (ClassSearch fast = ClassSearch.of(layer, unmeasured);
                    TopClasses exact = search.topK(odd, k);
                    TopClasses found = fast.topK(odd, k)) {
                double recall = recall(exact, found, k);
                return new ClassIndex(
                        cells,
                        unmeasured.sample,
                        recall,
                        cells.share(odd),
                        seconds(search, odd, k) / seconds(fast, odd, k));
            }
        }
    }

    private static double length(NDArray features) {
        try (NDArray lengths = features.norm(new int[] {1}, false);
                NDArray mean = lengths.mean()) {
            return Math.max(Float.MIN_NORMAL, mean.getFloat());
        }
    }

    private static double recall(TopClasses exact, TopClasses found, int k) {
        long[] right = exact.classes().toLongArray();
        long[] seen = found.classes().toLongArray();
        int hits = 0;
        for (int row = 0; row < right.length; row += k) {
            Set<Long> best = new HashSet<>();
            for (int i = row; i < row + k; i++) {
                best.add(right[i]);
            }
            for (int i = row; i < row + k; i++) {
                hits += best.contains(seen[i]) ? 1 : 0;
            }
        }
        return (double) hits / right.length;
    }

    /** Returns the median time of a search of one row. */
    private static double seconds(ClassSearch search, NDArray rows, int k) {
        double[] seconds = new double[TIMED];
        for (int i = 0; i < TIMED; i++) {
            try (NDArray row = rows.get(i % rows.getShape().get(0)).expandDims(0)) {
                long begin = System.nanoTime();
                search.topK(row, k).close();
                seconds[i] = (System.nanoTime() - begin) / 1e9;
            }
        }
        Arrays.sort(seconds);
        return seconds[TIMED / 2];
    }

    /**
     * Writes the index. A file that is there is replaced when the new one is complete.
     *
     * @param file the file, of safetensors
     * @throws IOException if it cannot be written
     */
    public void save(Path file) throws IOException {
        int count = cells.sizes().length;
        int width = cells.features();
        ByteBuffer bytes =
                ByteBuffer.allocate(
                                4 * (count * (width + 3) + cells.order().length + sample.length))
                        .order(ByteOrder.LITTLE_ENDIAN);
        for (float[] each : List.of(cells.means(), cells.biases(), cells.spreads(), sample)) {
            bytes.asFloatBuffer().put(each);
            bytes.position(bytes.position() + 4 * each.length);
        }
        for (int[] each : List.of(cells.sizes(), cells.order())) {
            bytes.asIntBuffer().put(each);
            bytes.position(bytes.position() + 4 * each.length);
        }
        Path folder = Objects.requireNonNull(file.toAbsolutePath().getParent(), "a file");
        try (SideFolder side = SideFolder.in(folder);
                SafetensorsWriter writer =
                        SafetensorsWriter.builder()
                                .addTensor("means", DataType.FLOAT32, new Shape(count, width))
                                .addTensor("biases", DataType.FLOAT32, new Shape(count))
                                .addTensor("spreads", DataType.FLOAT32, new Shape(count))
                                .addTensor(
                                        "sample",
                                        DataType.FLOAT32,
                                        new Shape(sample.length / width, width))
                                .addTensor("sizes", DataType.INT32, new Shape(count))
                                .addTensor("order", DataType.INT32, new Shape(cells.order().length))
                                .optMetadata("version", VERSION)
                                .optMetadata("checksum", checksum(bytes))
                                .optMetadata("probes", Integer.toString(cells.probes()))
                                .optMetadata("recall", Double.toString(recall))
                                .optMetadata("share", Double.toString(share))
                                .optMetadata("speedup", Double.toString(speedup))
                                .build(
                                        FileChannel.open(
                                                side.resolve(file.getFileName().toString()),
                                                StandardOpenOption.CREATE,
                                                StandardOpenOption.WRITE))) {
            writer.write(bytes.flip());
            writer.finish();
            side.replace();
        } catch (IOException e) {
            throw SideFolder.explained(folder, e);
        }
    }

    private static String checksum(ByteBuffer bytes) {
        CRC32 sum = new CRC32();
        sum.update(bytes.array());
        return Long.toHexString(sum.getValue());
    }

    /**
     * Reads an index.
     *
     * @param file the file
     * @return the index
     * @throws IOException if the file is missing, damaged, or of another version
     */
    public static ClassIndex load(Path file) throws IOException {
        try (SafetensorsFile in = SafetensorsFile.open(file)) {
            Map<String, String> texts = in.getMetadata();
            if (!VERSION.equals(texts.get("version"))) {
                throw new IOException(
                        "%s has version %s of an index, and this program reads %s. %s"
                                .formatted(file, texts.get("version"), VERSION, REMEDY));
            }
            long[] means = in.getTensor("means").shape().getShape();
            long size = in.getTensors().values().stream().mapToLong(it -> it.bytes()).sum();
            ByteBuffer bytes =
                    ByteBuffer.allocate(Math.toIntExact(size)).order(ByteOrder.LITTLE_ENDIAN);
            for (String each : List.of("means", "biases", "spreads", "sample", "sizes", "order")) {
                ByteBuffer part = bytes.slice(bytes.position(), (int) in.getTensor(each).bytes());
                in.read(in.getTensor(each), 0, part);
                bytes.position(bytes.position() + part.position());
            }
            if (!checksum(bytes).equals(texts.get("checksum"))) {
                throw new IOException(
                        "%s is damaged: its checksum is %s, and should be %s. %s"
                                .formatted(file, checksum(bytes), texts.get("checksum"), REMEDY));
            }
            bytes.flip();
            int count = (int) means[0];
            int width = (int) means[1];
            float[] rows = floats(bytes, count * width);
            float[] biases = floats(bytes, count);
            float[] spreads = floats(bytes, count);
            float[] sample = floats(bytes, (int) in.getTensor("sample").shape().size());
            int probes = Integer.parseInt(texts.get("probes"));
            Errors.check(probes > 0 && probes <= count, "%s of %s cells", probes, count);
            int[] sizes = ints(bytes, count);
            int[] order = ints(bytes, (int) in.getTensor("order").shape().size());
            return new ClassIndex(
                    new ClassCells(width, rows, biases, spreads, sizes, order, probes),
                    sample,
                    Double.parseDouble(texts.get("recall")),
                    Double.parseDouble(texts.get("share")),
                    Double.parseDouble(texts.get("speedup")));
        } catch (RuntimeException e) { // the header is not that of an index
            throw new IOException("%s is no index of classes. %s".formatted(file, REMEDY), e);
        }
    }

    private static float[] floats(ByteBuffer bytes, int count) {
        float[] values = new float[count];
        bytes.asFloatBuffer().get(values);
        bytes.position(bytes.position() + 4 * count);
        return values;
    }

    private static int[] ints(ByteBuffer bytes, int count) {
        int[] values = new int[count];
        bytes.asIntBuffer().get(values);
        bytes.position(bytes.position() + 4 * count);
        return values;
    }

    /**
     * Checks that the index is of the last layer of a network in a safetensors file, of which it
     * reads a few rows.
     *
     * @param file the file
     * @throws IOException if the file cannot be read
     * @throws IllegalArgumentException if the index is of another weight
     */
    public void check(Path file) throws IOException {
        try (SafetensorsFile in = SafetensorsFile.open(file);
                NDManager manager = NDManager.newBaseManager("PyTorch")) {
            StoredTensor last = null;
            for (StoredTensor each : in.getTensors().values()) {
                last = each.shape().dimension() == 2 ? each : last;
            }
            Shape shape = last == null ? new Shape() : last.shape();
            checkShape(shape);
            List<ShardRange> ranges =
                    Arrays.stream(sampled(shape.get(0)))
                            .mapToObj(each -> new ShardRange(each, 1))
                            .toList();
            checkRows(
                    in.read(Objects.requireNonNull(last).name(), 0, ranges, manager)
                            .toFloatArray());
        }
    }

    void checkShape(Shape weight) {
        Errors.check(
                weight.equals(new Shape(cells.order().length, cells.features())),
                "The index is of %s classes of %s features, and the weight has %s. %s",
                cells.order().length,
                cells.features(),
                weight,
                REMEDY);
    }

    void checkRows(float... rows) {
        Errors.check(
                Arrays.equals(rows, sample),
                "The index is of another weight, which was trained since. %s",
                REMEDY);
    }

    /** Returns some classes, from the first on at equal distances. */
    static long[] sampled(long classes) {
        int count = (int) Math.min(classes, SAMPLE);
        return IntStream.range(0, count).mapToLong(each -> each * classes / count).toArray();
    }

    /**
     * Returns the classes by cells, for the searches of this library.
     *
     * @return the cells
     */
    public ClassCells getCells() {
        return cells;
    }

    /**
     * Returns how many cells a search looks into.
     *
     * @return the number of cells
     */
    public int getProbes() {
        return cells.probes();
    }

    /**
     * Returns which share of the 10 best classes a search finds, as measured when the index was
     * built.
     *
     * @return the share, 0 to 1
     */
    public double getRecall() {
        return recall;
    }

    /**
     * Returns which share of the classes a search computes the logits of.
     *
     * @return the share, 0 to 1
     */
    public double getShare() {
        return share;
    }

    /**
     * Returns how many times as fast as an exact search that of one row was when the index was
     * built.
     *
     * @return the ratio
     */
    public double getSpeedup() {
        return speedup;
    }

    /** Returns what the index is and what it gains, in words. */
    @Override
    public String toString() {
        return String.format(
                Locale.ROOT,
                "%,d classes in %,d cells: a search looks into %,d, %.2f %% of the classes,"
                        + " finds %.4f of the %d best, and is %.2f times as fast as an exact search of a row",
                cells.order().length,
                cells.sizes().length,
                cells.probes(),
                100 * share,
                recall,
                BEST,
                speedup);
    }
}
