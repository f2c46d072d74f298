package io.djltp.training;

import ai.djl.nn.Block;
import ai.djl.nn.norm.Dropout;
import ai.djl.nn.recurrent.RecurrentBlock;

import io.djltp.parameters.BlockWalk;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.util.ArrayList;
import java.util.List;

/**
 * DJL's dropout in a network, wherever it sits: as a child of a block, in a field of one (DJL's
 * transformer blocks have it there), in collections of blocks in fields, or as a rate of a
 * recurrent block, which libtorch applies between layers.
 */
final class DropoutSearch {

    private static final Logger logger = LoggerFactory.getLogger(DropoutSearch.class);

    private final List<Found> found = new ArrayList<>();

    /**
     * A block that draws in training.
     *
     * @param path where it is: children by name, fields after a dot
     * @param what the class and the rate
     * @param certain whether it is surely used: not in a field of a class that is not DJL's, where
     *     it may be there for something else
     */
    record Found(String path, String what, boolean certain) {

        /** {@inheritDoc} */
        @Override
        public String toString() {
            return path.isEmpty() ? what : path + " (" + what + ")";
        }
    }

    /**
     * Searches a network.
     *
     * @param network the network
     */
    DropoutSearch(Block network) {
        BlockWalk.of(network, this::visit);
    }

    /** Returns what was found. */
    List<Found> getFound() {
        return found;
    }

    private void visit(Block block, String path, boolean certain) {
        if (block instanceof Dropout) {
            add(block, path, number(block, Dropout.class, "rate", 1), certain);
        } else if (block instanceof RecurrentBlock
                && number(block, RecurrentBlock.class, "numLayers", 2) > 1) {
            add(block, path, number(block, RecurrentBlock.class, "dropRate", 1), certain);
        }
    }

    private void add(Block block, String path, double rate, boolean certain) {
        if (rate > 0) {
            String what = block.getClass().getSimpleName() + ", rate " + (float) rate;
            found.add(new Found(path, what, certain));
        }
    }

    /** Reads a number that DJL keeps to itself. */
    private static double number(Block block, Class<?> type, String name, double otherwise) {
        try {
            Object value = BlockWalk.valueOf(block, type.getDeclaredField(name));
            return value == null ? otherwise : ((Number) value).doubleValue();
        } catch (NoSuchFieldException e) {
            logger.debug("{} of this DJL has no field {}", type, name, e);
            return otherwise;
        }
    }
}
