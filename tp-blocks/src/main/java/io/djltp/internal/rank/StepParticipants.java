package io.djltp.internal.rank;

import ai.djl.nn.Block;
import ai.djl.nn.Parameter;

import java.util.Collections;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.function.BiConsumer;
import java.util.function.Function;
import java.util.function.Supplier;

/** The participants of a rank's steps, in the order in which blocks have asked for them. */
public final class StepParticipants implements Iterable<StepParticipant>, AutoCloseable {

    private final Map<Key, StepParticipant> participants = new LinkedHashMap<>();
    private BiConsumer<Key, StepParticipant> onNew = (key, participant) -> {};

    StepParticipants() {}

    /**
     * What a participant is kept by.
     *
     * @param type its class
     * @param key the key of the block that has asked for it
     */
    public record Key(Class<?> type, Object key) {

        /**
         * Returns a name that is the same in another training of the same network.
         *
         * @param names returns the name of a parameter or a block in the network
         * @return the name: of the key, and of the class
         * @throws IllegalStateException if the key is neither a parameter, a block nor a text
         */
        public String name(Function<Object, String> names) {
            boolean named = key instanceof Parameter || key instanceof Block;
            if (!named && !(key instanceof String)) {
                throw new IllegalStateException(
                        type.getName()
                                + " has a state, and is kept by "
                                + key
                                + ": context.getParticipants().get(key, ...) needs a parameter, a"
                                + " block or a text as its key, by which another run finds it");
            }
            return (named ? names.apply(key) : key) + "/" + type.getSimpleName();
        }
    }

    /**
     * Returns a participant.
     *
     * @param <T> its class
     * @param key what it is kept by, mostly a parameter of the block that asks
     * @param type its class: a block may have participants of several for one key
     * @param factory makes it at the first call
     * @return the participant
     * @throws IllegalArgumentException if another participant has one of its parameters
     */
    public <T extends StepParticipant> T get(
            Object key, Class<T> type, Supplier<? extends T> factory) {
        Key place = new Key(type, key);
        StepParticipant participant = participants.get(place);
        if (participant == null) {
            participant = factory.get();
            checkOwner(participant);
            onNew.accept(place, participant); // if it throws, the next call tries again
            participants.put(place, participant);
        }
        return type.cast(participant);
    }

    private void checkOwner(StepParticipant added) {
        for (StepParticipant other : this) {
            for (Parameter parameter : added.getParameters()) {
                if (other.getParameters().contains(parameter)) {
                    throw new IllegalArgumentException(
                            "Parameter "
                                    + parameter.getName()
                                    + " "
                                    + parameter.getShape()
                                    + " is shared by two blocks that update it themselves ("
                                    + other.getClass().getSimpleName()
                                    + " and "
                                    + added.getClass().getSimpleName()
                                    + "): give each a parameter of its own");
                }
            }
        }
    }

    /**
     * Returns the parameters that participants update themselves.
     *
     * @return the parameters
     */
    public Set<Parameter> getParameters() {
        Set<Parameter> parameters = new HashSet<>();
        forEach(each -> parameters.addAll(each.getParameters()));
        return parameters;
    }

    /**
     * Returns the number of participants.
     *
     * @return how many there are
     */
    public int size() {
        return participants.size();
    }

    /**
     * Returns the participants by what they are kept by.
     *
     * @return the participants, in the order in which they were made
     */
    public Map<Key, StepParticipant> asMap() {
        return Collections.unmodifiableMap(participants);
    }

    /**
     * Sets what is done with a participant when it is made, before it is used: one that is restored
     * gets its state.
     *
     * @param action what is done, in the thread of the rank
     */
    public void setOnNew(BiConsumer<Key, StepParticipant> action) {
        onNew = action;
    }

    /** {@inheritDoc} */
    @Override
    public Iterator<StepParticipant> iterator() {
        return Collections.unmodifiableCollection(participants.values()).iterator();
    }

    /** Closes the participants. */
    @Override
    public void close() {
        forEach(StepParticipant::close);
    }
}
