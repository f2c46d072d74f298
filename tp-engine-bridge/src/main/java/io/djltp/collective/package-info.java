/** Contains the collective operations between ranks and their backends. */
@NullMarked
package io.djltp.collective;

import org.jspecify.annotations.NullMarked;
