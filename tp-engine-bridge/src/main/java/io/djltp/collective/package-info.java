/** Contains the collective operations between ranks and their backends. */
package io.djltp.collective;
