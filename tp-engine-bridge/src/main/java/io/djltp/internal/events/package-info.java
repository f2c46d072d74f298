/** The events that a recording of Java Flight Recorder gets of a training. */
@NullMarked
package io.djltp.internal.events;

import org.jspecify.annotations.NullMarked;
