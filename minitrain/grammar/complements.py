"""Objects and other complements, by the class that the verb table names.

They are plural, mass or definite, so that they go with habits as well as with single
acts; nouns that are subjects (``minitrain.grammar.phrases``) are never among them.
"""

# What may follow a verb, by class. A bar separates; an empty one is no phrase.
_COMPLEMENTS = """
aid: help|advice|support|shelter|work
amount: |again|a little|a lot
animals: cows|horses|hens|goats|ducks
appointment: names|dates|birthdays|faces|phone numbers
art: pictures|portraits|maps|faces|old trees
at_person: at the visitors|at the twins|at the mayor|at the baby|at the crowd
baked: bread|cakes|pies|cookies|rolls
ball: balls|stones|snowballs|sticks|pine cones
beads: beads|pearls|lights|paper stars
beam: a light into the cave|a lamp at the wall|a light at the door
behavior: kind|careful|polite|patient|brave|rude
bell: the bell|bells|the church bell|the doorbell
bids: on the house|on antiques|for the farm|on old cars
bills: the rent|the bill|the fees|the fine|the workers
book: old books|reports|branches into bundles|papers into books
breath: out candles|up balloons|bubbles|on the soup|kisses
brewing: tea|coffee|beer|mint tea
build: houses|walls|sheds|bridges|boats|fences
bursting: into tears|into song|into laughter|balloons
cards: cards|with complaints|with the orders|with the mess
carving: toys|spoons|wooden horses|bowls
castable: nets|spells|votes|fishing lines
claim: the theory|the claim|the point|the theorem
clothes: sweaters|socks|scarves|shirts|dresses
conduct: smoking|loud music|open fires|card games|pets
confusion: salt for sugar|tea for coffee|copper for gold
contest: the race|the match|games|bets|arguments
cooking: fish|eggs|potatoes|beans|noodles|mushrooms
coping: with problems|with the noise|with stress|with complaints
cost: a lot|a fortune|too much|very little
craft: toys|baskets|candles|paper hats|pots
data: numbers|codes|names|new data
destination: home|to town|to the market|to the beach|to the station|to work
device: the clock|the alarm|the router|the timer|the radio
doing: swimming|painting|gardening|skating|running|baking
drink: water|milk|tea|coffee|apple juice
emotion: |quietly|with joy|in silence|at the news
escape: from danger|from the fire|from the city|to the hills|to safety
event: parties|meetings|concerts|races|weddings|debates
exam: tests|exams|the driving test|the math exam
fact: the truth|the answer|the facts|the whole story|the news
fear: fear|shyness|pain|old habits|doubts
film: films|the match|cartoons|the parade|the news
fire: candles|fires|lamps|the stove|lanterns
fish: fish|crabs|trout|eels
fitting: pipes|tires|locks|new shelves
floor: the floor|the stairs|the hall|the kitchen|the porch
food: bread|apples|fish|cheese|cookies|pizza
for_goal: for peace|for success|for justice|for change
forsaken: old friends|the city|the plan|the village|all hope
fragile: plates|cups|glasses|bowls|jars
fruit: apples|oranges|lemons|limes|tomatoes
game: chess|cards|football|tennis|outside|with the ball
garden: roses|carrots|herbs|potatoes|beans|tomatoes
gift: books to the school|clothes to the shelter|food to the poor
gossip: secrets|gossip|jokes|arguments|phone calls
grain: coffee|corn|wheat|pepper|spices
group: the choir|the team|the band|the club|the class
hanging: coats|curtains|pictures|mirrors|lamps
hardship: pressure|the cold|the heat|attacks|the storm
here: here|at home|in town|at the station|in Rome
hold_on: to the rope|to the rail|to hope|to the past|to a branch
home_place: in London|in a village|abroad|by the sea|in a tent|near the lake
household: the windows|the shelves|the desk|the mirrors|the table
indoors: down the stairs|along the hall|into the house|out of the room
intent: well|trouble|business
joining: in the games|in the contest|in the feast|in debates
knocking: at the door|on the window|on the wall|on the table
knots: knots|buttons|zippers|straps|laces
language: French|Spanish|Greek|Korean|Welsh
law: the law|the rules|the code|the treaty
lawn: the lawn|the grass|the meadow|the front yard
leaving: home|the house|the office|town|the party
letting: the dog out|the cat in|the guests in|the birds go
load: the pain|the blame|heavy loads|the cost
loan: loans|old debts|the bank|the money
machine: bikes|cars|radios|clocks|lamps
material: paper|card|cloth|leather|rope
meal: lunch|breakfast|dinner|dessert
meal_time: lunch|breakfast|dinner|a rest|a picnic|fun
metal: wire|metal bars|iron rods|old nails|spoons
mishap: |on the ice|on the stairs|in the mud|on the path
money: money|cash|coins|a little money|ten dollars
monster: dragons|monsters|giants|demons
mood: tired|hungry|angry|nervous|bored|sleepy
mount: horses|ponies|bikes|camels|the bus
none:
obstacle: over the wall|over the fence|across the stream|over the gate
on_place: on the grass|on the flowers|on the snow|on the path
opening: the door|the gate|the window|the box|the drawer
outing: for lunch|for a walk|for a swim|for dinner
parcel: parcels|boxes|packages|gifts|letters
path: along the river|through the woods|up the hill|around the lake|in the park
person: the guests|the visitors|the twins|the mayor|the neighbors|the old man
photo: photos|notes|lessons|long walks|the bus
plan: plans|the plan|new ideas|the budget|the offer|the changes
plea: for help|for food|for mercy|for more time
pointing: at the map|at the stars|to the exit|at the sign
posture: on the grass|on the floor|in the sun|by the fire|under a tree
pride: with pride|with joy|with anger
problem: problems|puzzles|hard questions|old cases|the riddle
program: the news|concerts|debates|live shows|the match
putting: books on the shelf|cups on the table|boxes on the floor
remaking: films|old movies|the video|comedies
rising: |slowly|with a smile|in silence|with a sigh
rival: the champions|the experts|the other team|strong rivals
road: down the road|through the town|along the coast|over the bridge
rooms: rooms|the house|an office|the top floor
ruler: the king|the queen|tyrants|the emperor
rules: the rules|the order|the decision|old customs
seed: seeds|corn|wheat|oats|barley
setting: the table|traps|goals|alarms|records
shaking: hands|the bottle|the tree|the rug|the box
ship: ships|boats|rafts|toy boats
shooting: arrows|short films|at targets|hoops
showing: photos to the guests|maps to the tourists|toys to the twins
shrinking: from danger|from conflict|from the task|from the truth
signing: letters|checks|contracts|forms
sliding: down the hill|on the ice|across the floor|down the rail
smell: flowers|the soup|old books|smoke
soil: holes|tunnels|ditches|wells
somewhere: |outside|at home|in the garden|in the park|by the river
speech: hello|goodbye|a prayer|yes|thank you
spitting: on the floor|in the sink|out the seeds
spreading: butter|rumors|jam|honey|lies
staff: |at the library|for the city|at a hospital|at a shelter
sticking: stamps on cards|labels on jars|notes on the wall
stinging: the mayor with jokes|rivals with remarks
stink: of fish|of smoke|of garlic|of paint
story: stories|jokes|legends|fairy tales|myths
strewing: petals|sand|straw|rose leaves
striking: the drum|the bell|the ball|matches
subject: math|history|physics|chess|law|music
swinging: on the gate|from a branch|on a rope|the hammer
task: repairs|hard tasks|research|projects|odd jobs
tears: tears|a few tears|a little weight
text: letters|stories|poems|reports|essays|emails
thing: boxes|bags|crates|baskets|bottles|books
thrusting: poles into the sand|sticks into the mud|spades into the soil
to_do: to win|to help|to leave|to sing|to study
to_person: to the guests|to the mayor|to the neighbors|to the twins
topic: about work|about school|about money|about the film|about the trip
traffic: trucks|buses|slow cars|cyclists|tractors
travel: to Paris|to Rome|to Peru|abroad|north
treasure: coins|jewels|old keys|gold|old letters
treatment: surgery|tests|treatment|training
trouble: trouble|problems|delays|accidents
tune: songs|folk songs|old tunes|carols|hymns
vehicle: trucks|old cars|buses|vans|taxis
verse: poems|verses|the poem|old rhymes
view: the view|the sea|the stars|the sunset
wager: on horses|on the race|on dogs|on the match
waiting: for the bus|for news|for help|for a taxi|for advice
wall: on the wall|on the desk|on the fence|on a stick
wash: |in the lake|in cold water|in the river
water: in the lake|in the sea|in the bay|near the island
weather: rain|snow|storms|strong winds
wet_cloth: wet towels|wet socks|out the mop|out the rag
wettable: the cloth|the brush|the sponge|the clay
winding: the clock|yarn|old clocks|the cable
with_person: with the mayor|with the neighbors|with the twins|with the boss
withheld: taxes|the truth|payment|support
wood: wood|logs|sticks|dry branches|firewood
wool: sheep|lambs|alpacas
words: words|names|long words|place names
world: the city|the island|the coast|old castles|caves
woven: baskets|cloth|rugs|mats|blankets
yarn: wool|yarn|silk|cotton|thread
"""


COMPLEMENTS = {
    name: tuple(text.strip().split("|"))
    for name, text in (line.split(":") for line in _COMPLEMENTS.strip().splitlines())
}
